// Sessions of LiteRT.js, as Session of tflite/session.py: models whose shapes are fixed, for any number of examples.
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
    const at = buffer.lock(READ), bytes = litert.HEAPU8.slice(at, at + buffer.packedSize());
    buffer.unlock();
    buffer.delete();
    return bytes;
  }

  return async ([file]) => {
    const at = litert._malloc(file.length);
    litert.HEAPU8.set(file, at);
    const model = litert.loadModel(environment, at, file.length), signature = model.getSignature(0);
    const compiled = await litert.compileModel(environment, model, {
      environment, accelerator: "wasm", cpuOptions: { numThreads: 1 }, gpuOptions: {}, webNNOptions: {},
    });
    const inputs = listed(signature.inputNames()).map((_, i) => model.getInputTensorType(0, i));
    const outputs = listed(signature.outputNames()).map((_, i) => {
      const type = model.getOutputTensorType(0, i);
      return [...TYPES[type.elementType().value], listed(type.layout().dimensions())];
    });
    const run = async (arrays) => {
      const bytes = arrays.map(({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      const times = bytes[0].length / inputs[0].bytes(), parts = outputs.map(() => []);
      for (let i = 0; i < times; i++) {
        const buffers = inputs.map((type, k) => given(type, bytes[k].subarray(i * type.bytes(), (i + 1) * type.bytes())));
        (await compiled.run(0, buffers)).forEach((buffer, k) => parts[k].push(taken(buffer)));
        buffers.forEach((buffer) => buffer.delete());
      }
      return Promise.all(outputs.map(async ([type, Array, shape], k) => {
        const data = new Array(await new Blob(parts[k]).arrayBuffer());
        return { type, data, shape: shape.length ? [shape[0] * times, ...shape.slice(1)] : shape };
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
