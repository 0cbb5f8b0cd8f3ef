// The worker in Node: node worker.mjs FOLDER, the folder with node_modules.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { serve } from "./messages.mjs";

const modules = join(process.argv[2], "node_modules");

async function onnxruntime() {
  const { opener } = await import("./onnxruntime.mjs");
  return opener(await import(pathToFileURL(join(modules, "onnxruntime-web/dist/ort.node.min.mjs"))));
}

async function litert() {
  const { build, opener } = await import("./litert.mjs");
  const folder = join(modules, "@litertjs/core/wasm/"), file = `${folder}${build()}.js`;
  // A script for pages: it exports nothing.
  const script = new Function("require", "__filename", "__dirname", `${readFileSync(file, "utf8")}\nreturn ModuleFactory;`);
  const factory = script(createRequire(file), file, folder);
  return opener(await factory({ locateFile: (name) => folder + name, print: console.error }));
}

async function send(parts) {
  for (const part of parts) {
    if (!process.stdout.write(part)) await new Promise((resolve) => process.stdout.once("drain", resolve));
  }
}

const incoming = process.stdin[Symbol.asyncIterator]();
await serve({ onnxruntime, litert }, () => incoming.next(), send);
