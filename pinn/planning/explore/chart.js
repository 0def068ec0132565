"use strict";
// Curves with bands as SVG, drawn at the width that there is, so that letters keep their size.

const SVG = "http://www.w3.org/2000/svg";
// Colours differ in lightness too (Okabe and Ito 2008), and curves in their dashes.
const LOOKS = [["#0072b2", ""], ["#d55e00", "7 4"], ["#004d40", "2 3"], ["#cc79a7", "10 3 2 3"],
  ["#56b4e9", "4 2"], ["#7a3b00", "12 4"], ["#777777", "1 2"]];
const HEIGHT = 280;
const MARGIN = { left: 58, right: 14, top: 12, bottom: 44 };

function svgElement(name, attributes, text) {
  const found = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => found.setAttribute(key, value));
  if (text !== undefined) found.textContent = text;
  return found;
}

/** 1, 2 and 5 times powers of ten, or even steps, within a range: about as many as there is room. */
function ticks(low, high, log, room) {
  const found = [];
  if (log) {
    const first = Math.floor(Math.log10(low));
    const last = Math.ceil(Math.log10(high));
    const steps = last - first <= 2 ? [1, 2, 5] : [1];
    for (let power = first; power <= last; power += 1) {
      steps.forEach((step) => found.push(step * 10 ** power));
    }
  } else {
    const rough = (high - low) / Math.max(room, 2);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
    for (let i = Math.ceil(low / step); i * step <= high * (1 + 1e-9); i += 1) found.push(i * step);
  }
  return found.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
}

/** Three digits; whole numbers from 100 on. */
function written(value) {
  if (!Number.isFinite(value)) return "–";
  const form = value >= 100 ? { maximumFractionDigits: 0 } : { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
  return value.toLocaleString("en", value === 0 ? {} : form);
}

const whole = (value) => value.toLocaleString("en");

/** A tick's number, without zeros that say nothing. */
function marked(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 6 });
}

function scale(values, log, from, to) {
  const finite = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = log ? Math.min(...finite) : 0;
  let high = Math.max(...finite);
  if (!(high > low)) [low, high] = log ? [low / 2, low * 2] : [0, high || 1];
  const turned = log ? Math.log : (value) => value;
  const at = (value) => from + ((turned(value) - turned(low)) / (turned(high) - turned(low))) * (to - from);
  return { low, high, at };
}

/**
 * Draw a chart into a figure's holder.
 * `axes` has `x` and `y`, each a label and whether it is logarithmic; `curves` have a name, a look,
 * points `middle`, `low` and `high` (or null), and one point `now`.
 */
function draw(holder, axes, curves, summary) {
  const width = Math.max(holder.clientWidth, 240);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": summary,
  });
  const all = curves.flatMap((c) => [...c.middle, ...(c.low || []), ...(c.high || [])]);
  holder.replaceChildren(svg);
  if (!all.length) {
    svg.append(svgElement("text", { x: 12, y: 40 }, "Nothing runs at this load."));
    return;
  }
  const x = scale(all.map((p) => p[0]), axes.x.log, MARGIN.left, width - MARGIN.right);
  const y = scale(all.map((p) => p[1]), axes.y.log, HEIGHT - MARGIN.bottom, MARGIN.top);
  grid(svg, axes, x, y, width);
  const path = (points) => points.map((p, i) => `${i ? "L" : "M"}${x.at(p[0]).toFixed(1)} ${y.at(p[1]).toFixed(1)}`).join("");
  curves.forEach(({ look, middle, low, high, now }) => {
    const [colour, dash] = LOOKS[look % LOOKS.length];
    if (low !== null && middle.length > 1) {
      svg.append(svgElement("path", { d: `${path(low)}${path([...high].reverse()).replace("M", "L")}Z`, fill: colour, opacity: 0.13 }));
    }
    svg.append(svgElement("path", { d: path(middle), fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash }));
    if (now) {
      svg.append(svgElement("circle", { cx: x.at(now[0]), cy: y.at(now[1]), r: 5.5, fill: colour, stroke: "#fff", "stroke-width": 1.5 }));
    }
  });
}

function grid(svg, axes, x, y, width) {
  const bottom = HEIGHT - MARGIN.bottom;
  ticks(x.low, x.high, axes.x.log, width / 90).forEach((tick) => {
    svg.append(svgElement("line", { x1: x.at(tick), x2: x.at(tick), y1: MARGIN.top, y2: bottom, class: "grid" }));
    svg.append(svgElement("text", { x: x.at(tick), y: bottom + 16, "text-anchor": "middle" }, marked(tick)));
  });
  ticks(y.low, y.high, axes.y.log, 5).forEach((tick) => {
    svg.append(svgElement("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y.at(tick), y2: y.at(tick), class: "grid" }));
    svg.append(svgElement("text", { x: MARGIN.left - 6, y: y.at(tick) + 4, "text-anchor": "end" }, marked(tick)));
  });
  svg.append(svgElement("text", { x: (MARGIN.left + width) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, axes.x.label));
}
