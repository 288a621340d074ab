// Formats numbers, sizes, durations and times.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NOTHING = "–";

export function count(number) {
  return number === null || number === undefined ? NOTHING : whole.format(number);
}

export function compact(number) {
  return number === null || number === undefined ? NOTHING : Math.abs(number) < 10000 ? whole.format(Math.round(number)) : short.format(number);
}

export function counted(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return NOTHING;
  return `${perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : compact(perSecond)}/s`;
}

export function bytes(size) {
  if (size === null || size === undefined) return NOTHING;
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (size >= 1024 && at < names.length - 1) { size /= 1024; at += 1; }
  return `${at && size < 100 ? size.toFixed(1) : Math.round(size)} ${names[at]}`;
}

export function span(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  if (ms === "never") return "never";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = Math.round(ms / 1000);
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const at = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[at];
  const next = units[at + 1];
  const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
  return `${Math.floor(seconds / size)}${name}${rest ? ` ${rest}${next[0]}` : ""}`;
}

export function moment(ms) {
  if (ms === null || ms === undefined || ms < 0) return NOTHING;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function ago(ms) {
  return ms === null || ms === undefined || ms < 0 ? NOTHING : `${span(Math.max(0, Date.now() - ms))} ago`;
}

// The end of a sentence about a result that leaves out leaderless partitions.
export function leftOut(indexes) {
  if (!indexes?.length) return "";
  return indexes.length === 1 ? `; partition ${indexes[0]} has no leader now and is left out` : `; ${count(indexes.length)} partitions have no leader now and are left out`;
}
