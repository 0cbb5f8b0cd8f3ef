// The worker in Node: node worker.mjs FOLDER, the folder that has node_modules/onnxruntime-web.
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { serve } from "./sessions.mjs";

const ort = await import(pathToFileURL(join(process.argv[2], "node_modules/onnxruntime-web/dist/ort.node.min.mjs")));
const incoming = process.stdin[Symbol.asyncIterator]();

async function write(bytes) {
  if (!process.stdout.write(bytes)) await new Promise((resolve) => process.stdout.once("drain", resolve));
}

await serve(ort, () => incoming.next(), async (parts) => {
  for (const part of parts) await write(part);
});
