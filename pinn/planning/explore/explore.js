"use strict";
// The page: what is set, what that comes to, and curves around it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const GPUS = [...new Set(DATA.servers.map((server) => server.gpu))];
const LENGTHS = ["prompt", "output", "context"];
const COLUMNS = DATA.servers.flatMap((server) => server.columns);
const STOPS = Object.fromEntries(LENGTHS.map((name) => [
  name, [...new Set(COLUMNS.map((column) => column[name]))].sort((a, b) => a - b)]));
const MOST = Math.max(...COLUMNS.map((column) => column.most));
const load = { ...DATA.load };

/** Put the sliders where they stand at first, at stops that the page has. */
function reset() {
  Object.assign(load, DATA.load);
  LENGTHS.forEach((name) => {
    load[name] = STOPS[name].reduce((best, stop) => (
      Math.abs(stop - DATA.load[name]) < Math.abs(best - DATA.load[name]) ? stop : best));
  });
  load.inFlight = Math.min(load.inFlight, MOST);
}

/** Clients that the slider stops at: 1, 2, 3, 4, 6, 8, 12 and so on. */
function clientStops() {
  const found = [1];
  for (let value = 2; value < MOST; value *= 2) found.push(value, 1.5 * value);
  return [...found.filter((value) => value < MOST), MOST];
}

function chosen() {
  const wanted = new Set([...document.querySelectorAll("#gpus input:checked")].map((box) => box.value));
  return GPUS.filter((gpu) => wanted.has(gpu)).map((gpu) => ({ gpu, look: GPUS.indexOf(gpu), server: find(gpu) }));
}

function find(gpu) {
  const [tp, format] = [Number(byId("tp").value), byId("format").value];
  return DATA.servers.find((s) => s.gpu === gpu && s.tp === tp && s.format === format) || null;
}

/** Why a server is not there: as the command said, or nothing was asked of it. */
function missing(gpu) {
  const [tp, format] = [Number(byId("tp").value), byId("format").value];
  const precision = (DATA.servers.find((s) => s.format === format) || {}).precision;
  const found = DATA.left_out.find((s) => s.gpu === gpu && s.tp === tp && s.precision === precision);
  return found ? `does not start: ${found.reason}` : "not among the servers of this page";
}

function setUp() {
  const option = (select, value) => select.append(new Option(value, value));
  const sizes = [...new Set(DATA.servers.map((s) => s.tp))].sort((a, b) => a - b);
  sizes.forEach((size) => option(byId("tp"), size));
  [...new Set(DATA.servers.map((s) => s.format))].forEach((format) => option(byId("format"), format));
  const shared = sizes.find((size) => GPUS.every((gpu) => DATA.servers.some((s) => s.gpu === gpu && s.tp === size)));
  byId("tp").value = shared || sizes[0];
  GPUS.forEach((gpu, i) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: gpu, checked: i < 4 });
    const line = svgElement("svg", { width: 28, height: 10, "aria-hidden": "true" });
    const [stroke, dash] = LOOKS[i % LOOKS.length];
    line.append(svgElement("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke, "stroke-dasharray": dash, "stroke-width": 3 }));
    label.append(box, line, gpu);
    byId("gpus").append(label);
  });
  reset();
  setUpClients();
  LENGTHS.forEach(setUpLength);
  document.querySelectorAll("select, #gpus input").forEach((each) => each.addEventListener("change", show));
  let width = 0;
  new ResizeObserver(() => {
    if (width !== document.body.clientWidth) show();
    width = document.body.clientWidth;
  }).observe(document.body);
}

function setUpClients() {
  const [number, slider] = [byId("inFlight"), byId("inFlight-slider")];
  const values = clientStops();
  const place = () => {
    slider.value = values.findIndex((value) => value >= load.inFlight);
    slider.setAttribute("aria-valuetext", whole(load.inFlight));
  };
  Object.assign(slider, { min: 0, max: values.length - 1, step: 1 });
  number.value = load.inFlight;
  place();
  slider.addEventListener("input", () => {
    load.inFlight = values[Number(slider.value)];
    number.value = load.inFlight;
    complain("");
    place();
    show();
  });
  number.addEventListener("input", () => {
    const value = Number(number.value);
    const good = number.value.trim() !== "" && Number.isInteger(value) && value >= 1 && value <= MOST;
    complain(good ? "" : `Give a whole number from 1 to ${whole(MOST)}; shown is ${whole(load.inFlight)}.`);
    if (!good) return;
    load.inFlight = value;
    place();
    show();
  });
}

function setUpLength(name) {
  const [slider, said] = [byId(`${name}-slider`), byId(name)];
  const place = () => {
    slider.value = STOPS[name].indexOf(load[name]);
    slider.setAttribute("aria-valuetext", `${whole(load[name])} tokens`);
    said.textContent = whole(load[name]);
  };
  Object.assign(slider, { min: 0, max: STOPS[name].length - 1, step: 1 });
  place();
  slider.addEventListener("input", () => {
    load[name] = STOPS[name][Number(slider.value)];
    place();
    show();
  });
}

function complain(text) {
  byId("inFlight-error").textContent = text;
  byId("inFlight").setAttribute("aria-invalid", text ? "true" : "false");
}

const span = (low, high) => `${written(low)} to ${written(high)}`;

/** Value with its interval, of a function of what `serve` gives. */
function bounded(at, value) {
  if (!at.ends) return written(value(at));
  const ends = [value(at.ends.fast), value(at.ends.slow)].sort((a, b) => a - b);
  return `${written(value(at))} (${span(...ends)})`;
}

function predicted(server, changed) {
  const asked = { ...load, ...changed };
  const room = capacity(server, asked, DATA.range_ratio);
  if (asked.inFlight > room.requests) return { room, fits: false };
  const middle = serve(server, asked);
  return { ...middle, room, fits: true, ends: serveInterval(server, middle) };
}

const FIGURES = [
  ["Time per token", "ms", (at) => 1e3 * at.tpot],
  ["Time to first token", "ms", (at) => 1e3 * at.ttft],
  ["Throughput", "tokens/s", (at) => at.tokens],
  ["Per GPU", "tokens/s", (at) => at.perGpu],
  ["Per user", "tokens/s", (at) => at.perUser],
];

function showFigures(rows) {
  byId("figures").replaceChildren(...rows.map(({ gpu, look, server }) => {
    const card = document.createElement("section");
    card.style.borderTopColor = LOOKS[look % LOOKS.length][0];
    card.append(Object.assign(document.createElement("h3"), { textContent: gpu }));
    const say = (text) => card.append(Object.assign(document.createElement("p"), { textContent: text }));
    if (!server) {
      say(missing(gpu));
      return card;
    }
    const at = predicted(server, {});
    if (!at.fits) {
      say(`${whole(load.inFlight)} such requests do not run at once: ${at.room.reason}.`);
      return card;
    }
    const list = document.createElement("dl");
    FIGURES.forEach(([name, unit, value]) => list.append(
      Object.assign(document.createElement("dt"), { textContent: `${name}, ${unit}` }),
      Object.assign(document.createElement("dd"), { textContent: bounded(at, value) })));
    card.append(list);
    say(`Up to ${whole(at.room.requests)} at once: ${at.room.reason}.`);
    return card;
  }));
}

/** Curves of the servers that are there, along values of one field of the load. */
function along(rows, name, values, point) {
  return rows.filter((row) => row.server).map(({ gpu, look, server }) => {
    const most = name === "inFlight" ? capacity(server, load, DATA.range_ratio).requests : load[name];
    const found = [...new Set([...values, load[name], ...(most ? [most] : [])])].sort((a, b) => a - b)
      .map((value) => [value, predicted(server, { [name]: value })]).filter(([, at]) => at.fits);
    const ends = found.every(([, at]) => at.ends);
    const now = found.find(([value]) => value === load[name]);
    return {
      gpu, look, found,
      middle: found.map(([value, at]) => point(value, at)),
      low: ends ? found.map(([value, at]) => point(value, at.ends.fast)) : null,
      high: ends ? found.map(([value, at]) => point(value, at.ends.slow)) : null,
      now: now ? point(now[0], now[1]) : null,
    };
  });
}

function showChart(id, axes, curves, value, unit, heading) {
  const said = curves.filter((c) => c.now).map((c) => {
    const at = c.found.find(([x]) => x === load[axes.field])[1];
    return `${c.gpu} ${bounded(at, value)} ${unit}`;
  });
  draw(byId(id), axes, curves, `${heading}. At the chosen load: ${said.join(", ") || "nothing runs"}. The table below has the figures.`);
  const shown = [...new Set(curves.flatMap((c) => c.found.map(([x]) => x)))].sort((a, b) => a - b);
  fillTable(byId(`${id}-table`), [axes.fieldName, ...curves.map((c) => `${c.gpu}, ${unit}`)],
    shown.map((x) => [whole(x), ...curves.map((c) => {
      const at = c.found.find(([each]) => each === x);
      return at ? bounded(at[1], value) : "–";
    })]));
}

function fillTable(table, head, rows) {
  const row = (cells, tag) => {
    const found = document.createElement("tr");
    cells.forEach((text, i) => {
      const cell = document.createElement(i === 0 && tag === "td" ? "th" : tag);
      if (cell.tagName === "TH") cell.scope = tag === "th" ? "col" : "row";
      cell.textContent = text;
      found.append(cell);
    });
    return found;
  };
  table.replaceChildren(document.createElement("thead"), document.createElement("tbody"));
  table.tHead.append(row(head, "th"));
  table.tBodies[0].append(...rows.map((cells) => row(cells, "td")));
}

/** Parts of the mean step without prompts, and of the mean step with some, of every server. */
function showParts(rows) {
  const steps = rows.filter((row) => row.server && predicted(row.server, {}).fits).flatMap(({ gpu, server }) => {
    const column = columnOf(server, load);
    return [["decode_us", "decodes alone"], ["mixed_us", "with prompt tokens"]].map(([kind, said]) => {
      const us = interpolateParts(column.clients, column[kind], load.inFlight);
      return [`${gpu}: ${said}`, us && Object.fromEntries(DATA.parts.map((part, i) => [part, 1e-6 * us[i]]))];
    }).filter(([, of]) => of);
  });
  const parts = DATA.parts.filter((part) => steps.some(([, of]) => of[part] > 0));
  const total = (of) => Object.values(of).reduce((sum, value) => sum + value, 0);
  const longest = Math.max(...steps.map(([, of]) => total(of)));
  byId("bars").replaceChildren(...steps.map(([name, of]) => {
    const row = document.createElement("div");
    const bar = Object.assign(document.createElement("div"), { className: "bar" });
    bar.append(...parts.map((part, i) => {
      const piece = Object.assign(document.createElement("span"), { className: `part part-${i % 10}` });
      piece.style.width = `${(100 * (of[part] || 0)) / longest}%`;
      piece.title = `${part.replaceAll("_", " ")}: ${written(1e3 * (of[part] || 0))} ms`;
      return piece;
    }));
    row.append(Object.assign(document.createElement("div"), { textContent: `${name}, ${written(1e3 * total(of))} ms` }), bar);
    return row;
  }));
  byId("legend").replaceChildren(...parts.map((part, i) => {
    const item = document.createElement("li");
    item.append(Object.assign(document.createElement("span"), { className: `part part-${i % 10}` }), part.replaceAll("_", " "));
    return item;
  }));
  fillTable(byId("bars-table"), ["Step", "all, ms", ...parts.map((part) => `${part.replaceAll("_", " ")}, ms`)],
    steps.map(([name, of]) => [name, written(1e3 * total(of)), ...parts.map((part) => written(1e3 * (of[part] || 0)))]));
}

function showCommand(rows) {
  const first = rows.find((row) => row.server && predicted(row.server, {}).fits);
  byId("command").textContent = first ? [
    `pinn simulate ${DATA.arguments} --gpu ${first.gpu} --tensor-parallel-size ${first.server.tp}`,
    first.server.precision ? ` --quantization ${first.server.precision}` : "",
    ` --input-len ${load.prompt} --output-len ${load.output} --concurrency ${load.inFlight}`,
    ` --num-prompts ${requestsOf(first.server, load, DATA.requests_per_client)} --range-ratio ${DATA.range_ratio}`,
    load.context ? ` --prefix-len ${load.context}` : "",
  ].join("") : "";
}

let saying = 0;
/** Said once the hand rests, so that a screen reader is not flooded. */
function say(rows) {
  clearTimeout(saying);
  saying = setTimeout(() => {
    byId("said").textContent = rows.map(({ gpu, server }) => {
      const at = server && predicted(server, {});
      return at && at.fits ? `${gpu}: ${written(1e3 * at.tpot)} ms per token, ${written(1e3 * at.ttft)} ms to the first` : `${gpu} does not run this`;
    }).join(". ");
  }, 500);
}

function show() {
  const rows = chosen();
  showFigures(rows);
  const many = { field: "inFlight", fieldName: "Requests in flight", x: { label: "requests in flight", log: true } };
  const clients = clientStops();
  const [tpot, ttft, throughput] = FIGURES.map(([, , value]) => value);
  const [, , , perGpu, perUser] = FIGURES.map(([, , value]) => value);
  showChart("tpot", { ...many, y: { log: false } }, along(rows, "inFlight", clients, (x, at) => [x, tpot(at)]), tpot, "ms", "Time per token against requests in flight");
  showChart("throughput", { ...many, y: { log: false } }, along(rows, "inFlight", clients, (x, at) => [x, throughput(at)]), throughput, "tokens/s", "Throughput against requests in flight");
  showChart("ttft", { field: "prompt", fieldName: "Prompt tokens", x: { label: "prompt tokens", log: true }, y: { log: true } },
    along(rows, "prompt", STOPS.prompt, (x, at) => [x, ttft(at)]), ttft, "ms", "Time to first token against prompt length");
  showChart("frontier", { ...many, x: { label: "tokens/s that a user sees", log: false }, y: { log: false } },
    along(rows, "inFlight", clients, (_, at) => [perUser(at), perGpu(at)]), perGpu, "tokens/s per GPU", "Throughput per GPU against speed per user");
  showParts(rows);
  showCommand(rows);
  say(rows);
}

setUp();
show();
