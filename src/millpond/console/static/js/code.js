// A record as code to paste: to read it again, or to produce the same record.

import { decode } from "./data.js";

// A Python literal of arbitrary bytes.
export function pythonBytes(data) {
  if (data === null) return "None";
  let text = "";
  for (const each of decode(data)) {
    const sign = String.fromCharCode(each);
    if (sign === "\\" || sign === '"') text += `\\${sign}`;
    else if (each === 10) text += "\\n";
    else if (each >= 32 && each < 127) text += sign;
    else text += `\\x${each.toString(16).padStart(2, "0")}`;
  }
  return `b"${text}"`;
}

function pythonText(text) {
  // JSON's escapes are valid in Python, except for lone surrogates, which topics and headers do not contain.
  return JSON.stringify(text);
}

function shellText(text) {
  return /^[\w.,:/=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

export function asPythonProducer(bootstrap, topic, record) {
  const headers = record.headers.map(([name, value]) => `(${pythonText(name)}, ${pythonBytes(value)})`);
  return [
    "from confluent_kafka import Producer", "",
    `producer = Producer({"bootstrap.servers": ${pythonText(bootstrap)}})`,
    "producer.produce(", `    ${pythonText(topic)},`, `    ${pythonBytes(record.value)},`, `    ${pythonBytes(record.key)},`,
    headers.length ? `    headers=[${headers.join(", ")}],` : null, ")", "producer.flush()", "",
  ].filter((line) => line !== null).join("\n");
}

export function asPythonConsumer(bootstrap, topic, record) {
  return [
    "from confluent_kafka import Consumer, TopicPartition", "",
    `consumer = Consumer({"bootstrap.servers": ${pythonText(bootstrap)}, "group.id": "look", "enable.auto.commit": False})`,
    `consumer.assign([TopicPartition(${pythonText(topic)}, ${record.partition}, ${record.offset})])`,
    "message = consumer.poll(10)", "print(message.key(), message.value(), message.headers())", "consumer.close()", "",
  ].join("\n");
}

export function asCommand(bootstrap, topic, record) {
  return `millpond consume ${shellText(topic)} --bootstrap ${shellText(bootstrap)} --partition ${record.partition} --from ${record.offset} -n 1`;
}

// For an empty topic.
export function asFirstCommand(bootstrap, topic) {
  return `echo hello | millpond produce ${shellText(topic)} --bootstrap ${shellText(bootstrap)}`;
}
