// Decodes Avro with a given schema. Data that does not match is an error, never a guess.

const DEPTH_MAX = 64;
const ITEMS_MAX = 100000;

// The value of these bytes. `schema` is parsed JSON. The five-byte prefix of a schema registry is skipped.
export function readAvro(raw, schema) {
  const names = new Map();
  learn(schema, "", names, 0);
  // 0 and a four-byte schema id: the prefix that serializers with a registry write.
  const tries = raw.length >= 5 && raw[0] === 0 ? [5, 0] : [0];
  let fault = null;
  for (const start of tries) {
    const input = { raw, view: new DataView(raw.buffer, raw.byteOffset, raw.byteLength), at: start, items: 0 };
    try {
      const value = read(input, schema, "", names, 0);
      if (input.at !== raw.length) throw new Error(`${raw.length - input.at} bytes are left over`);
      return { value, registryId: start ? input.view.getInt32(1) : null };
    } catch (error) {
      fault ??= error;
    }
  }
  throw fault;
}

function fullName(schema, space) {
  return schema.name.includes(".") ? schema.name : schema.namespace ?? space ? `${schema.namespace ?? space}.${schema.name}` : schema.name;
}

function learn(schema, space, names, depth) {
  if (depth > DEPTH_MAX) throw new Error("The schema is too deep.");
  if (Array.isArray(schema)) { schema.forEach((each) => learn(each, space, names, depth + 1)); return; }
  if (typeof schema !== "object" || schema === null) return;
  if (schema.name && ["record", "enum", "fixed", "error"].includes(schema.type)) {
    const name = fullName(schema, space);
    names.set(name, [schema, name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : ""]);
    space = names.get(name)[1];
  }
  for (const field of schema.fields ?? []) learn(field.type, space, names, depth + 1);
  for (const part of [schema.items, schema.values, typeof schema.type === "object" ? schema.type : null]) if (part) learn(part, space, names, depth + 1);
}

function take(input, count) {
  if (count < 0 || input.at + count > input.raw.length) throw new Error("The data ends too early.");
  input.at += count;
  return input.at - count;
}

// A zigzag number of up to 64 bits; as text if a double cannot hold it exactly.
function readLong(input) {
  let value = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    const byte = input.raw[take(input, 1)];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) {
      const number = BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n));
      return Number.isSafeInteger(Number(number)) ? Number(number) : String(number);
    }
  }
  throw new Error("A number is too long.");
}

function readCount(input) {
  const number = readLong(input);
  if (typeof number !== "number") throw new Error("A length is invalid.");
  return number;
}

function readBytes(input, count) {
  const at = take(input, count);
  return input.raw.subarray(at, at + count);
}

function hex(bytes) {
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

function readText(input) {
  return new TextDecoder("utf-8", { fatal: true }).decode(readBytes(input, readCount(input)));
}

const PLAIN = {
  null: () => null,
  boolean: (input) => { const byte = input.raw[take(input, 1)]; if (byte > 1) throw new Error("A boolean is neither true nor false."); return byte === 1; },
  int: readLong, long: readLong,
  float: (input) => input.view.getFloat32(take(input, 4), true),
  double: (input) => input.view.getFloat64(take(input, 8), true),
  bytes: (input) => hex(readBytes(input, readCount(input))),
  string: readText,
};

function read(input, schema, space, names, depth) {
  if (depth > DEPTH_MAX) throw new Error("It is nested too deeply.");
  if (Array.isArray(schema)) {
    const index = readCount(input);
    if (!(index in schema)) throw new Error(`A union has no part ${index}.`);
    return read(input, schema[index], space, names, depth + 1);
  }
  if (typeof schema === "string") {
    if (PLAIN[schema]) return PLAIN[schema](input);
    const known = names.get(schema) ?? names.get(`${space}.${schema}`);
    if (!known) throw new Error(`The schema does not define ${schema}.`);
    return read(input, known[0], known[1], names, depth + 1);
  }
  if (typeof schema !== "object" || schema === null) throw new Error("The schema is invalid.");
  switch (schema.type) {
    case "record": case "error": {
      const inside = fullName(schema, space);
      const within = inside.includes(".") ? inside.slice(0, inside.lastIndexOf(".")) : "";
      return Object.fromEntries(schema.fields.map((field) => [field.name, read(input, field.type, within, names, depth + 1)]));
    }
    case "enum": {
      const index = readCount(input);
      if (!(index in schema.symbols)) throw new Error(`${schema.name} has no symbol ${index}.`);
      return schema.symbols[index];
    }
    case "fixed": return hex(readBytes(input, schema.size));
    case "array": return blocks(input, () => read(input, schema.items, space, names, depth + 1));
    case "map": return Object.fromEntries(blocks(input, () => [readText(input), read(input, schema.values, space, names, depth + 1)]));
    default: return logical(schema, read(input, schema.type, space, names, depth + 1));
  }
}

function blocks(input, one) {
  const items = [];
  for (;;) {
    let number = readCount(input);
    if (number === 0) return items;
    if (number < 0) { number = -number; readLong(input); }
    input.items += number;
    if (input.items > ITEMS_MAX) throw new Error("There are too many items to show.");
    while (number--) items.push(one());
  }
}

function logical(schema, value) {
  if (typeof value === "number" && schema.logicalType === "timestamp-millis") return new Date(value).toISOString();
  if (typeof value === "number" && schema.logicalType === "timestamp-micros") return new Date(value / 1000).toISOString();
  if (typeof value === "number" && schema.logicalType === "date") return new Date(value * 86400000).toISOString().slice(0, 10);
  return value;
}
