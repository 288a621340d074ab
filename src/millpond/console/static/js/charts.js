// Small drawings: a curve over time, and a fill-level bar.

import { h, svg } from "./dom.js";

export function curve(values, label, { tall = false } = {}) {
  const points = values.length > 1 ? values : [values[0] ?? 0, values[0] ?? 0];
  const top = Math.max(...points, 1e-9) * 1.08;
  const at = points.map((value, index) => `${(index / (points.length - 1)) * 100},${(40 - (value / top) * 38).toFixed(2)}`);
  return svg("svg", { class: tall ? "curve tall" : "curve", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("polygon", { class: "area", points: `0,40 ${at.join(" ")} 100,40` }),
    svg("polyline", { class: "line", points: at.join(" ") }));
}

export function meter(share, label, level = "") {
  return h("div", { class: `meter ${level}`, role: "img", "aria-label": label }, h("div", { "width%": Math.min(100, Math.max(0, share * 100)) }));
}
