// The list of topics.

import { change, name } from "../api.js";
import { ask, empty, field, fill, h, head, note } from "../dom.js";
import { bytes, compact, count } from "../format.js";
import { list } from "../list.js";
import { go, keep, state } from "../router.js";

export async function draw(main, words, params, signal) {
  if (words.length) return (await import("./topic.js")).draw(main, words, params, signal);
  const create = () => createTopic((made) => go(`/topics/${name(made)}`));
  const { table } = list({
    path: "/api/topics", label: "topics", params, signal, switches: [["internal", "Include internal topics"]],
    columns: [
      ["Topic", (each) => h("a", { href: `/topics/${name(each.name)}` }, each.name), "name"],
      ["Partitions", (each) => count(each.partitions), "num"],
      ["Replicas", (each) => count(each.replicas), "num optional"],
      ["Offsets", (each) => compact(each.offsets), "num"],
      ["Size", (each) => bytes(each.size_bytes), "num"],
      ["State", (each) => topicState(each), "optional"],
    ],
    none: () => empty("There are no topics yet.", h("span", {}, "A topic is a log that any number of clients can write and read."), state.readOnly ? null : h("button", { class: "main", onclick: create }, "Create a topic")),
  });
  fill(main, head("Topics", { actions: state.readOnly ? [] : [h("button", { class: "main", onclick: create }, "Create topic")] }), table);
  if (params.get("create") && !state.readOnly) { keep({ create: "" }); create(); }
}

function topicState(topic) {
  if (topic.leaderless) return h("span", { class: "state bad" }, `${count(topic.leaderless)} without a leader`);
  if (topic.behind) return h("span", { class: "state warn" }, `${count(topic.behind)} not in sync`);
  return h("span", { class: "state good" }, "in sync");
}

function createTopic(done) {
  ask({
    title: "Create a topic",
    action: "Create",
    body: [
      field("Name", h("input", { name: "name", required: true, maxlength: "249", pattern: "[a-zA-Z0-9._\\-]+", autocomplete: "off", autofocus: true, title: "Letters, digits, dot, dash and underscore" }), "Letters, digits, dot, dash and underscore."),
      h("div", { class: "two" },
        field("Partitions", h("input", { name: "partitions", type: "number", min: "1", max: "100000", placeholder: "the cluster’s default" })),
        field("Replicas", h("input", { name: "replicas", type: "number", min: "1", max: "1000", placeholder: "the cluster’s default" }))),
      field("Settings", h("textarea", { name: "settings", rows: "3", placeholder: "retention.ms=86400000\ncleanup.policy=compact" }), "One NAME=VALUE per line; empty for the cluster’s defaults."),
    ],
    act: async (form) => {
      const settings = Object.create(null);
      for (const line of form.elements.settings.value.split("\n").map((each) => each.trim()).filter(Boolean)) {
        const at = line.indexOf("=");
        if (at < 1) throw new Error(`Write settings as NAME=VALUE: ${line}`);
        settings[line.slice(0, at).trim()] = line.slice(at + 1).trim();
      }
      const made = form.elements.name.value.trim();
      await change("POST", "/api/topics", {
        name: made, settings,
        partitions: form.elements.partitions.valueAsNumber || null,
        replicas: form.elements.replicas.valueAsNumber || null,
      });
      note(`Created ${made}.`);
      done(made);
    },
  });
}
