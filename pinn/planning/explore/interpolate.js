"use strict";
// Values between simulations of one server: clients are interpolated, lengths are stops.

/** Slopes of a monotone cubic (Fritsch and Butland 1984), as scipy's PchipInterpolator has them. */
function slopes(x, y) {
  const last = x.length - 1;
  const h = x.slice(1).map((value, i) => value - x[i]);
  const d = h.map((step, i) => (y[i + 1] - y[i]) / step);
  if (last === 1) return [d[0], d[0]];
  const end = (h0, h1, d0, d1) => {
    const found = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1);
    if (Math.sign(found) !== Math.sign(d0)) return 0;
    return Math.sign(d0) !== Math.sign(d1) && Math.abs(found) > 3 * Math.abs(d0) ? 3 * d0 : found;
  };
  return x.map((_, i) => {
    if (i === 0) return end(h[0], h[1], d[0], d[1]);
    if (i === last) return end(h[last - 1], h[last - 2], d[last - 1], d[last - 2]);
    if (d[i - 1] * d[i] <= 0) return 0;
    const [before, after] = [2 * h[i] + h[i - 1], h[i] + 2 * h[i - 1]];
    return (before + after) / (before / d[i - 1] + after / d[i]);
  });
}

/** A positive quantity at a number of clients between those simulated, cubic in logarithms. */
function interpolate(clients, values, at) {
  const exact = clients.indexOf(at);
  if (exact >= 0) return values[exact];
  const [x, y] = [clients.map(Math.log), values.map(Math.log)];
  const m = slopes(x, y);
  const i = clients.findIndex((each) => each > at) - 1;
  const h = x[i + 1] - x[i];
  const t = (Math.log(at) - x[i]) / h;
  return Math.exp((1 + 2 * t) * (1 - t) ** 2 * y[i] + t * (1 - t) ** 2 * h * m[i]
    + t * t * (3 - 2 * t) * y[i + 1] + t * t * (t - 1) * h * m[i + 1]);
}

/** Times of the parts of a step, linear between two simulations; null where no such step ran. */
function interpolateParts(clients, parts, at) {
  const above = clients.findIndex((each) => each >= at);
  const [low, high] = [parts[clients[above] === at ? above : above - 1], parts[above]];
  if (!low.length || !high.length) return low.length ? low : high.length ? high : null;
  const from = clients[Math.max(above - 1, 0)];
  const share = low === high ? 0 : (at - from) / (clients[above] - from);
  return low.map((value, i) => (1 - share) * value + share * high[i]);
}

/** The simulations of these lengths; undefined where such requests do not fit. */
function columnOf(server, load) {
  return server.columns.find((each) => each.prompt === load.prompt
    && each.output === load.output && each.context === load.context);
}

/** Clients that run at once with these lengths, and what stops more. */
function capacity(server, load, rangeRatio) {
  const column = columnOf(server, load);
  const said = (count) => count.toLocaleString("en");
  if (!column) {
    const longest = [load.prompt, load.output].reduce((sum, n) => sum + Math.ceil((1 + rangeRatio) * n), load.context);
    return { requests: 0, reason: longest > server.max_model_len
      ? `a request has up to ${said(longest)} tokens, the engine takes ${said(server.max_model_len)}`
      : `the KV cache of ${said(server.kv_tokens)} tokens holds none` };
  }
  const held = Math.floor((server.kv_tokens - load.context) / (load.prompt + load.output));
  const reason = column.most === server.max_requests ? `a step has at most ${said(column.most)} requests`
    : column.most === held ? `the KV cache of ${said(server.kv_tokens)} tokens holds ${said(held)} requests`
      : "more were not simulated";
  return { requests: column.most, reason };
}

function withRates(server, tpot, ttft, tokens) {
  return { tpot, ttft, tokens, perGpu: tokens / server.tp, perUser: 1 / tpot };
}

/** Mean time per token and to the first token (s), and tokens/s, of clients in a closed loop. */
function serve(server, load) {
  const column = columnOf(server, load);
  const value = (name) => interpolate(column.clients, column[name], load.inFlight);
  return withRates(server, value("tpot"), value("ttft"), value("tokens"));
}

/** The same at the fast and the slow end of the 90 % interval; null where the checkpoint has none.
 * Clients in a closed loop wait for steps: the rate moves as the time per token does. */
function serveInterval(server, middle) {
  if (server.half_widths === null) return null;
  const end = (sign) => {
    const [tpot, ttft] = ["tpot", "ttft"].map((name) => middle[name] * Math.exp(sign * server.half_widths[name]));
    return withRates(server, tpot, ttft, (middle.tokens * middle.tpot) / tpot);
  };
  return { fast: end(-1), slow: end(1) };
}

/** Requests that are simulated for these clients. */
function requestsOf(server, load, perClient) {
  return perClient * load.inFlight + columnOf(server, load).further_requests;
}
