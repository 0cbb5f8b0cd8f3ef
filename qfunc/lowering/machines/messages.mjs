// Answer the calls of another process, by the messages of worker.py; for Node and for browsers.
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
};

// A function of a count: as many of the bytes that arrive in chunks, or null after the last one.
function reader(chunks) {
  let held = new Uint8Array();
  return async (count) => {
    const parts = [held];
    let size = held.length;
    while (size < count) {
      const { value, done } = await chunks();
      if (done) return null;
      parts.push(value);
      size += value.length;
    }
    const all = parts.length === 1 ? held : joined(parts, size);
    held = all.subarray(count);
    return all.slice(0, count); // arrays of numbers need a buffer of their own
  };
}

function joined(parts, size) {
  const all = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

async function receive(exactly) {
  const length = await exactly(4);
  if (length === null) return null;
  const header = JSON.parse(new TextDecoder().decode(await exactly(new DataView(length.buffer).getUint32(0, true))));
  const arrays = [];
  for (const [type, shape] of header.arrays) {
    const content = await exactly(shape.reduce((a, b) => a * b, ARRAYS[type].BYTES_PER_ELEMENT));
    arrays.push({ type, shape, data: new ARRAYS[type](content.buffer) });
  }
  return { header, arrays };
}

// The parts of one message.
function message(header, arrays) {
  const text = new TextEncoder().encode(JSON.stringify({ ...header, arrays: arrays.map((a) => [a.type, a.shape]) }));
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, text.length, true);
  return [length, text, ...arrays.map(({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength))];
}

// Answer calls until the other process ends.
// runtimes: by the folder of a runtime's session.py, a function that loads it; with open(files, options) -> session, which has
//   facts, run(arrays) and close(). chunks: what arrives, as the reader of a stream. send: takes the parts of an answer.
export async function serve(runtimes, chunks, send) {
  const exactly = reader(chunks), sessions = new Map(), loaded = new Map();
  for (let given = await receive(exactly); given !== null; given = await receive(exactly)) {
    const { header: call, arrays } = given;
    for (const number of call.closed) {
      await sessions.get(number)?.close();
      sessions.delete(number);
    }
    let answer;
    try {
      if ("file" in call) {
        const name = call.file.split(/[\\/]/).at(-2);
        if (!loaded.has(name)) loaded.set(name, await loading(runtimes, name));
        const session = await loaded.get(name)(arrays.map((a) => a.data), call.options);
        sessions.set(call.session, session);
        answer = message({ facts: session.facts }, [{ type: "uint8", shape: [0], data: new Uint8Array() }]);
      } else {
        answer = message({}, await sessions.get(call.session).run(arrays));
      }
    } catch (error) {
      answer = message(error instanceof Missing ? { missing: error.message } : { error: String(error) }, []);
    }
    await send(answer);
  }
}

class Missing extends Error {}

async function loading(runtimes, name) {
  if (!(name in runtimes)) throw new Missing(`no ${name} for WebAssembly`);
  try {
    return await runtimes[name]();
  } catch (error) {
    throw new Missing(`no package for ${name}: ${String(error.message).split("\n")[0]}`);
  }
}
