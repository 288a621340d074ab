// The hardware that a workload needs: sliders for the numbers, with the sums beside them. The server calculates.

import { get, query } from "../api.js";
import { meter } from "../charts.js";
import { card, fault, fill, h, head, note, tile } from "../dom.js";
import { keep } from "../router.js";

const DAY = 86400;
const UNITS = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];

function three(number) {
  return number >= 100 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(3)));
}

function amount(bytes) {
  let at = 0;
  while (bytes >= 999.5 && at < UNITS.length - 1) { bytes /= 1000; at += 1; }
  return `${three(bytes)} ${UNITS[at]}`;
}

function number(value) {
  return value >= 999500 ? `${three(value / 1e6)} million` : three(value);
}

function days(seconds) {
  return seconds < DAY ? `${three(seconds / 3600)} h` : `${three(seconds / DAY)} days`;
}

// [name, label, lowest, highest, default, format, whole numbers only]; the scale is logarithmic unless whole.
const DEMAND = [
  ["messages_per_second", "Messages per second", 1, 1e8, 1e3, number],
  ["message_bytes", "Message size in bytes", 10, 1e6, 1000, amount],
  ["peak", "Peak, as a multiple of the average", 1, 10, 2, three],
  ["replication", "Replicas", 1, 5, 3, three, true],
  ["retention_seconds", "Kept for", 3600, 365 * DAY, 7 * DAY, days],
  ["groups", "Groups that read everything", 0, 20, 2, three, true],
  ["partition_bytes_per_second", "Throughput of a partition, per second", 1e5, 1e8, 1e7, amount],
  ["headroom", "Partitions, as a multiple of the need", 1, 10, 2, three],
];
const MACHINE = [
  ["disk_bytes", "Disk of a broker", 1e11, 1e14, 2e13, amount],
  ["disk_bytes_per_second", "Its write rate, per second", 1e7, 1e10, 1e8, amount],
  ["network_bytes_per_second", "Network each way, per second", 1e8, 1.25e10, 1.25e9, amount],
];
const ENGINE = [
  ["cores", "Cores of a machine", 1, 64, 1, three, true],
  ["core_write_bytes_per_second", "One core writes, per second", 1e7, 1e10, 3e8, amount],
  ["core_read_bytes_per_second", "One core reads, per second", 1e7, 1e10, 1e9, amount],
  ["core_requests_per_second", "One core answers, requests per second", 1e3, 1e6, 2e4, number],
  ["batch_bytes", "Request size in bytes", 100, 1e6, 1e5, amount],
];
const RULED_BY = { disk: "Disk", "disk speed": "Speed of the disk", network: "Network", replicas: "A broker for each replica", cores: "Processor" };
const STEPS = 600;

export async function draw(main, words, params, signal) {
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const values = {};
  const engine = h("input", { type: "checkbox", checked: params.get("core_write_bytes_per_second") !== null });
  let waiting = null;
  let timer = null;
  const setters = {};
  const sliders = (list) => list.map((each) => slider(each, params, values, setters, () => later()));
  const cores = h("div", { class: "stack" }, sliders(ENGINE));
  const load = async () => {
    const given = Object.fromEntries([...DEMAND, ...MACHINE, ...(engine.checked ? ENGINE : [])].map(([name]) => [name, values[name]]));
    const own = Object.fromEntries([...DEMAND, ...MACHINE, ...ENGINE].map(([name, , , , otherwise]) => [name, given[name] === undefined || (given[name] === otherwise && name !== "core_write_bytes_per_second") ? "" : given[name]]));
    keep(own);
    waiting?.abort();
    const mine = waiting = new AbortController();
    try {
      const found = await get(`/api/plan${query(given)}`, mine.signal);
      if (!signal.aborted) fill(result, shown(found));
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) fill(result, fault(error));
    }
  };
  const later = () => { clearTimeout(timer); timer = setTimeout(load, 40); };
  const now = h("button", { type: "button", onclick: async () => {
    now.disabled = true;
    try {
      const found = await get("/api/plan/workload", signal);
      setters.messages_per_second(found.records_per_second);
      if (found.record_bytes !== null) setters.message_bytes(found.record_bytes);
      setters.replication(found.replicas);
      setters.groups(found.groups);
      later();
    } catch (error) {
      if (!signal.aborted) note(error.message);
    } finally {
      now.disabled = false;
    }
  } }, "Use this cluster's load");
  engine.addEventListener("change", () => { cores.hidden = !engine.checked; later(); });
  cores.hidden = !engine.checked;
  signal.addEventListener("abort", () => { clearTimeout(timer); waiting?.abort(); });
  fill(main, head("Plan", { chips: [h("span", { class: "hint" }, "Storage, bandwidth, brokers and partitions for a workload, sum by sum")], actions: [now] }),
    h("div", { class: "planner" },
      h("div", { class: "stack" },
        card("What is asked", h("div", { class: "pad stack tight" }, sliders(DEMAND))),
        card("One broker", h("div", { class: "pad stack tight" }, sliders(MACHINE), h("label", { class: "check" }, engine, "Include its processor"), cores,
          h("p", { class: "hint" }, "To measure one core here: ", h("code", {}, "millpond plan --measure"))))),
      result));
  await load();
}

function slider([name, label, lowest, highest, otherwise, show, isWhole], params, values, setters, changed) {
  const asked = Number(params.get(name));
  const start = params.get(name) !== null && Number.isFinite(asked) && asked >= lowest && asked <= highest ? asked : otherwise;
  values[name] = start;
  const ratio = Math.log(highest / Math.max(lowest, 1e-9));
  const toStep = (value) => (isWhole ? value : (Math.log(value / lowest) / ratio) * STEPS);
  const toValue = (step) => (isWhole ? step : Number((lowest * Math.exp((step / STEPS) * ratio)).toPrecision(2)));
  const input = h("input", { type: "range", min: String(isWhole ? lowest : 0), max: String(isWhole ? highest : STEPS), step: "1", "aria-label": label });
  input.value = String(toStep(start));
  const said = h("output", {}, show(start));
  input.setAttribute("aria-valuetext", show(start));
  input.addEventListener("input", () => {
    values[name] = toValue(Number(input.value));
    said.textContent = show(values[name]);
    input.setAttribute("aria-valuetext", show(values[name]));
    changed();
  });
  setters[name] = (value) => {
    values[name] = Math.min(highest, Math.max(lowest, isWhole ? Math.round(value) : Number(value.toPrecision(2))));
    input.value = String(toStep(values[name]));
    said.textContent = show(values[name]);
    input.setAttribute("aria-valuetext", show(values[name]));
  };
  return h("label", { class: "slider" }, h("span", {}, label), said, input);
}

function shown({ plan, sections }) {
  const most = Math.max(...Object.values(plan.brokers_by));
  return [
    h("div", { class: "tiles" },
      tile("Brokers", plan.brokers.toLocaleString("en"), `each writes ${amount(plan.disk_writes_per_broker)}/s`),
      tile("Partitions", plan.partitions.toLocaleString("en"), `at least ${plan.partitions_min.toLocaleString("en")}`),
      tile("On disk", amount(plan.stored), `${amount(plan.kept_per_day)} a day before replicas`),
      tile("At peak", `${amount(plan.incoming_peak)}/s in`, `${amount(plan.outgoing_peak)}/s out`)),
    card("What determines the number of brokers", h("div", { class: "pad bars" }, Object.entries(plan.brokers_by).sort((one, other) => other[1] - one[1]).map(([name, needed]) => [
      h("span", { class: needed === most ? "name" : "soft" }, RULED_BY[name] ?? name), meter(needed / most, `${RULED_BY[name] ?? name}: ${three(needed)} brokers`), h("span", { class: "num" }, three(needed))]))),
    card("The sums", h("div", { class: "scroll" }, h("table", { class: "sums" }, sections.map((section) => h("tbody", {},
      h("tr", {}, h("th", { colspan: "3", scope: "rowgroup" }, section.title)),
      section.lines.map((line) => h("tr", {}, h("td", {}, line.label), h("td", { class: "soft" }, line.sum), h("td", { class: "num" }, `= ${line.result}`)))))))),
  ];
}
