// The drawing of a simulated cluster: producers above, nodes with their logs, groups with their consumers below, and
// the messages between them on top.

import { empty, fill, h, svg } from "./dom.js";

const COLOURS = 6;
const DOTS_MAX = 120;
// Larger groups show less of each member.
const MEMBERS_WHOLE_MAX = 12;

export class Stage {
  constructor(inspect) {
    this.inspect = inspect;
    this.wires = svg("svg", { "aria-hidden": "true" });
    this.body = h("div", { class: "stack" });
    this.element = h("div", { class: "sim-stage", role: "group", "aria-label": "The simulated cluster" }, this.body, this.wires);
    this.flying = 0;
  }

  // Shows the messages sent since `before` within `lasts_ms` of real time; 0 draws the current ones without moving.
  draw(look, before, lasts_ms) {
    fill(this.body,
      look.producers.length ? h("div", { class: "sim-row" }, look.producers.map(producer)) : null,
      h("div", { class: "sim-nodes" }, look.nodes.map((node) => nodeBox(node, look))),
      look.topics.length ? null : empty("There is no topic yet.", "Create one below."),
      groups(look));
    this.drawWires(look, before, lasts_ms);
  }

  drawWires(look, before, lasts_ms) {
    const own = this.element.getBoundingClientRect();
    const centres = new Map([...this.element.querySelectorAll("[data-host]")].map((each) => {
      const box = each.getBoundingClientRect();
      return [each.dataset.host, [box.left - own.left + box.width / 2, box.top - own.top + box.height / 2, box]];
    }));
    const lines = look.ways.filter((way) => centres.has(way.from) && centres.has(way.to)).map((way) => {
      const [x1, y1] = centres.get(way.from);
      const [x2, y2] = centres.get(way.to);
      return svg("line", { x1, y1, x2, y2, class: way.how === "cut" ? "cut" : "slow" });
    });
    const flights = look.flights.filter((each) => !["heartbeat", "quorum"].includes(each.theme) && centres.has(each.from) && centres.has(each.to)).slice(-DOTS_MAX);
    const still = !lasts_ms || matchMedia("(prefers-reduced-motion: reduce)").matches;
    const dots = flights.filter((each) => !still || each.arrived_ms === null || each.arrived_ms > before).map((each) => {
      const dot = svg("circle", { r: each.records ? 5.5 : 3.5, class: `m-${each.theme}${each.is_lost ? " lost" : ""}` }, svg("title", {}, `${each.from} → ${each.to}: ${each.api}${each.is_response ? " response" : ""}`));
      dot.addEventListener("click", () => this.inspect(each.number));
      return [each, dot];
    });
    this.wires.replaceChildren(...lines, ...dots.map(([, dot]) => dot));
    const place = ([each, dot], now) => {
      const until = each.arrived_ms ?? Math.max(now, each.sent_ms) + 2;
      const share = until > each.sent_ms ? Math.min(1, Math.max(0, (now - each.sent_ms) / (until - each.sent_ms))) : 1;
      const [x1, y1] = centres.get(each.from);
      const [x2, y2] = centres.get(each.to);
      dot.setAttribute("cx", x1 + (x2 - x1) * share);
      dot.setAttribute("cy", y1 + (y2 - y1) * share);
      dot.setAttribute("visibility", now < each.sent_ms || (each.arrived_ms !== null && now > each.arrived_ms) ? "hidden" : "visible");
    };
    const run = ++this.flying;
    if (still) {
      for (const each of dots) place(each, Math.min(look.now_ms, each[0].arrived_ms ?? look.now_ms));
      return;
    }
    const began = performance.now();
    const frame = (moment) => {
      if (run !== this.flying || !this.element.isConnected) return;
      const share = Math.min(1, (moment - began) / lasts_ms);
      for (const each of dots) place(each, before + (look.now_ms - before) * share);
      if (share < 1) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
}

function producer(each) {
  const counts = Object.entries(each.counts).filter(([, count]) => count).map(([status, count]) => `${count} ${status}`).join(", ");
  return h("div", { class: "sim-client", "data-host": each.name },
    h("strong", {}, each.name, " ", h("span", { class: "chip" }, `acks=${each.acks}`)),
    h("span", { class: "hint" }, counts || "nothing sent"),
    each.buffered || each.blocked ? h("span", { class: each.blocked ? "bad-text" : "hint" }, `buffer ${each.buffered} of ${each.buffer_max}${each.blocked ? `, ${each.blocked} blocked` : ""}`) : null);
}

function nodeBox(node, look) {
  const logs = look.topics.flatMap((topic) => topic.partitions.flatMap((part) => part.logs.filter((log) => log.node === node.id).map((log) => logBox(topic, part, log))));
  return h("section", { class: `sim-node${node.is_up ? "" : " down"}`, "data-host": node.name, "aria-label": `Node ${node.id}${node.is_up ? "" : ", down"}` },
    h("h3", {}, h("span", { class: `state ${node.is_up ? (node.is_fenced ? "warn" : "good") : "bad"}` }, `Node ${node.id}`),
      node.is_controller ? h("span", { class: "chip accent" }, "controller") : null,
      node.is_up ? (node.is_fenced ? h("span", { class: "chip" }, "fenced") : null) : h("span", { class: "chip" }, "down"),
      node.lives > 1 ? h("span", { class: "chip" }, `incarnation ${node.lives}`) : null),
    logs);
}

function logBox(topic, part, log) {
  const inSync = part.isr.includes(log.node);
  const high = log.high_watermark;
  const left = log.count - log.records.length;
  const words = `${topic.name}-${part.index} on node ${log.node}: ${log.role}${inSync ? ", in sync" : ", not in sync"}, offsets ${log.start} to ${log.end}${high === null ? "" : `, high watermark ${high}`}`;
  return h("div", { class: `sim-log ${log.role}${inSync ? "" : " outside"}` },
    h("div", { class: "label" }, h("b", {}, `${topic.name}-${part.index}${log.role === "leader" ? " · leads" : inSync ? "" : " · behind"}`),
      h("span", {}, high === null ? `end ${log.end}` : high === log.end ? `${log.start}–${log.end}` : `${log.start}–${log.end}, high watermark ${high}`)),
    h("div", { class: "sim-cells", role: "img", "aria-label": words, title: words },
      left > 0 ? h("span", { class: "more" }, `+${left}`) : null,
      log.records.map((each) => h("span", { class: cellClass(each, high), title: `${each.offset}: ${each.key === null ? "" : `${each.key} = `}${each.value ?? each.kind}${each.kind === "record" ? "" : ` (${each.kind})`}` }))));
}

function cellClass(each, high) {
  const colour = each.key === null ? "" : ` k${hash(each.key.split("#")[0]) % COLOURS}`;
  return `cell${colour}${high !== null && each.offset >= high ? " above" : ""}${each.kind === "record" || each.kind === "committed" ? "" : ` ${each.kind}`}`;
}

function hash(text) {
  let sum = 7;
  for (const sign of text) sum = (sum * 31 + sign.codePointAt(0)) % 9973;
  return sum;
}

function groups(look) {
  const names = [...new Set(look.consumers.map((each) => each.group))];
  if (!names.length) return null;
  return h("div", { class: "sim-groups" }, names.map((name) => {
    const group = look.groups.find((each) => each.name === name);
    const members = look.consumers.filter((each) => each.group === name);
    const topic = members[0].topic;
    const lags = Object.entries(group?.lag[topic] ?? {});
    const most = Math.max(1, ...lags.map(([, lag]) => lag));
    const total = lags.reduce((sum, [, lag]) => sum + lag, 0);
    return h("section", { class: "sim-group", "aria-label": `Group ${name}` },
      h("h3", {}, name, group ? h("span", { class: "chip" }, `${group.protocol ?? group.type}`) : null,
        group ? h("span", { class: `chip${group.state === "Stable" ? " accent" : ""}` }, `${group.state} · generation ${group.generation}`) : h("span", { class: "chip" }, "it has no coordinator now"),
        lags.length ? h("span", { class: "chip" }, `lag ${total}`) : null),
      group?.windows.length ? group.windows.map(shareWindow) : null,
      lags.length ? h("div", { class: "sim-lag" }, lags.map(([index, lag]) => [h("span", {}, `${topic}-${index}`), h("div", { class: "meter" }, h("div", { "width%": (lag / most) * 100 })), h("span", {}, `${group.committed[topic][index] ?? 0} · lag ${lag}`)])) : null,
      h("div", { class: "sim-row" }, members.map(members.length > MEMBERS_WHOLE_MAX ? brief : consumer)));
  }));
}

// The records of a share group's partition that are not finished: who has each of them.
function shareWindow(each) {
  const left = each.end - each.start - each.cells.length;
  const words = `${each.topic}-${each.partition} from offset ${each.start} to ${each.end}: ${each.available} available, ${each.acquired} out with workers`;
  return h("div", { class: "sim-log" },
    h("div", { class: "label" }, h("b", {}, `${each.topic}-${each.partition}`), h("span", {}, `${each.available} available · ${each.acquired} out`)),
    each.cells.length ? h("div", { class: "sim-cells", role: "img", "aria-label": words, title: words },
      each.cells.map((cell) => h("span", { class: `cell ${cell.state}${cell.deliveries > 1 ? " again" : ""}`, title: cellWords(cell) })),
      left > 0 ? h("span", { class: "more" }, `+${left}`) : null) : null);
}

function cellWords(cell) {
  const who = cell.holder ? ` by ${cell.holder}, ${(cell.lock_left_ms / 1000).toFixed(1)} s left` : "";
  return `${cell.offset}: ${cell.state}${who}${cell.deliveries ? `, ${cell.deliveries} deliver${cell.deliveries === 1 ? "y" : "ies"}` : ""}`;
}

function isIdle(each) {
  return each.state === "running" && !each.owned.length;
}

function brief(each) {
  return h("div", { class: `sim-client brief ${each.state}${isIdle(each) ? " idle" : each.busy_with ? " busy" : ""}`, "data-host": each.name, title: each.busy_with ? `works on ${each.busy_with.partition}:${each.busy_with.offset}` : each.state },
    h("strong", {}, each.name), h("span", { class: "hint" }, `${each.handled} done`));
}

function consumer(each) {
  const idle = isIdle(each);
  const habit = each.protocol === "share" ? (each.renews ? " · renews its locks" : "") : ` · commits ${each.commit}`;
  return h("div", { class: `sim-client ${each.state}${idle ? " idle" : ""}`, "data-host": each.name },
    h("strong", {}, each.name),
    h("span", { class: "hint" }, each.state === "running" ? (idle ? "idle" : `partitions ${each.owned.join(", ")}`) : each.state),
    h("span", { class: "hint" }, `${each.handled} done${habit}${each.read_committed ? " · read_committed" : ""}`),
    each.busy_with ? h("span", { class: "hint" }, `works on ${each.busy_with.partition}:${each.busy_with.offset}`) : null);
}
