// Open and run models in onnxruntime-web for another process, by the messages of worker.py: node worker.mjs FOLDER,
// the folder that has node_modules/onnxruntime-web.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const file = join(process.argv[2], "node_modules/onnxruntime-web/dist/ort.node.min.mjs");
const ort = await import(pathToFileURL(file));
ort.env.wasm.numThreads = 1;

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
};

let rest = Buffer.alloc(0);
const incoming = process.stdin[Symbol.asyncIterator]();

async function exactly(count) {
  const parts = [rest];
  let held = rest.length;
  while (held < count) {
    const { value, done } = await incoming.next();
    if (done) return null;
    parts.push(value);
    held += value.length;
  }
  const all = Buffer.concat(parts);
  rest = all.subarray(count);
  return all.subarray(0, count);
}

async function receive() {
  const length = await exactly(4);
  if (length === null) return null;
  const header = JSON.parse(await exactly(length.readUInt32LE(0)));
  const arrays = [];
  for (const [type, shape] of header.arrays) {
    const size = shape.reduce((a, b) => a * b, ARRAYS[type].BYTES_PER_ELEMENT);
    const buffer = new Uint8Array(await exactly(size)).buffer;
    arrays.push({ type, shape, data: new ARRAYS[type](buffer) });
  }
  return { header, arrays };
}

async function write(bytes) {
  if (!process.stdout.write(bytes)) await new Promise((resolve) => process.stdout.once("drain", resolve));
}

async function send(header, arrays) {
  const text = Buffer.from(JSON.stringify({ ...header, arrays: arrays.map((a) => [a.type, a.shape]) }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  await write(length);
  await write(text);
  for (const { data } of arrays) await write(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
}

const sessions = new Map();

async function open(call, [model]) {
  const { optimise = true } = call.options; // as Session of onnxruntime/session.py
  const options = { executionProviders: ["wasm"], graphOptimizationLevel: optimise ? "all" : "disabled", logSeverityLevel: 3 };
  const session = await ort.InferenceSession.create(model.data, options);
  sessions.set(call.session, session);
  await send({ facts: { names: session.inputNames, outputs: session.outputNames } }, [{ type: "uint8", shape: [0], data: new Uint8Array() }]);
}

async function run(call, arrays) {
  const session = sessions.get(call.session);
  const feeds = Object.fromEntries(arrays.map((a, i) => [session.inputNames[i], new ort.Tensor(a.type, a.data, a.shape)]));
  const found = await session.run(feeds);
  const results = session.outputNames.map((name) => ({ type: found[name].type, shape: [...found[name].dims], data: found[name].data }));
  await send({}, results);
}

for (let message = await receive(); message !== null; message = await receive()) {
  const { header: call, arrays } = message;
  for (const number of call.closed) {
    await sessions.get(number)?.release();
    sessions.delete(number);
  }
  try {
    await ("file" in call ? open : run)(call, arrays);
  } catch (error) {
    await send({ error: String(error) }, []);
  }
}
