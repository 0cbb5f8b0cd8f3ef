// Sessions of onnxruntime-web, as Session of onnxruntime/session.py.
export function opener(ort) {
  ort.env.wasm.numThreads = 1;
  return async ([model], { optimise = true }) => {
    const level = optimise ? "all" : "disabled";
    const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"], graphOptimizationLevel: level, logSeverityLevel: 3 });
    const { inputNames: names, outputNames: outputs } = session;
    const run = async (arrays) => {
      const found = await session.run(Object.fromEntries(arrays.map((a, i) => [names[i], new ort.Tensor(a.type, a.data, a.shape)])));
      return outputs.map((name) => ({ type: found[name].type, shape: [...found[name].dims], data: found[name].data }));
    };
    return { facts: { names, outputs }, run, close: () => session.release() };
  };
}
