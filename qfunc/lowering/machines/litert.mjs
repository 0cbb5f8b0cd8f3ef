// Sessions of LiteRT.js, as Session of litert/session.py; a model of any number of examples runs one by one.
const TYPES = { 1: ["float32", Float32Array], 2: ["int32", Int32Array], 3: ["uint8", Uint8Array], 7: ["int16", Int16Array], 9: ["int8", Int8Array] };

const listed = (vector) => Array.from({ length: vector.size() }, (_, i) => vector.get(i));

// litert: the module of a file of the package's folder wasm. Its own classes for JavaScript take neither int8 nor int16.
export function opener(litert) {
  const environment = litert.LiteRtEnvironment.create(null);
  const host = litert.LiteRtTensorBufferType.HOST_MEMORY;
  const { READ, WRITE } = litert.LiteRtTensorBufferLockMode;

  function given(type, bytes) {
    const buffer = litert.LiteRtTensorBuffer.createManaged(environment, host, type, bytes.length);
    const at = buffer.lock(WRITE); // may move the memory
    litert.HEAPU8.set(bytes, at);
    buffer.unlock();
    return buffer;
  }

  function taken(buffer) {
    const at = buffer.lock(READ), bytes = litert.HEAPU8.slice(at, at + buffer.packedSize()), type = buffer.tensorType();
    const found = { bytes, type: TYPES[type.elementType().value], shape: listed(type.layout().dimensions()) };
    buffer.unlock();
    buffer.delete();
    return found;
  }

  return async ([file]) => {
    const at = litert._malloc(file.length);
    litert.HEAPU8.set(file, at);
    const model = litert.loadModel(environment, at, file.length), signature = model.getSignature(0);
    const compiled = await litert.compileModel(environment, model, {
      environment, accelerator: "wasm", cpuOptions: { numThreads: 1 }, gpuOptions: {}, webNNOptions: {},
    });
    const inputs = listed(signature.inputNames()).map((_, i) => {
      const given = model.getInputTensorType(0, i), sizes = new litert.VectorInt32();
      for (const size of listed(given.layout().dimensions())) sizes.push_back(Math.max(size, 1)); // it cannot resize
      return litert.LiteRtRankedTensorType.create(given.elementType(), litert.LiteRtLayout.create(sizes));
    });
    const run = async (arrays) => {
      const bytes = arrays.map(({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      const times = bytes[0].length / inputs[0].bytes(), runs = [];
      for (let i = 0; i < times; i++) {
        const buffers = inputs.map((type, k) => given(type, bytes[k].subarray(i * type.bytes(), (i + 1) * type.bytes())));
        runs.push((await compiled.run(0, buffers)).map(taken));
        buffers.forEach((buffer) => buffer.delete());
      }
      return Promise.all(runs[0].map(async ({ type: [type, Numbers], shape: [first, ...others] }, k) => {
        const data = new Numbers(await new Blob(runs.map((outputs) => outputs[k].bytes)).arrayBuffer());
        return { type, data, shape: first === undefined ? [] : [times * first, ...others] };
      }));
    };
    const close = () => {
      compiled.delete();
      model.delete();
      litert._free(at);
    };
    return { facts: {}, run, close };
  };
}

// A program with relaxed SIMD, for which LiteRT.js has another build.
const RELAXED = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2, 11];

// The name of the build that LiteRT.js takes here.
export const build = () => `litert_wasm_${WebAssembly.validate(new Uint8Array(RELAXED)) ? "" : "compat_"}internal`;
