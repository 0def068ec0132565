"use strict";
// What the clients of one server see, from the coefficients of its configuration.
// Each of `inFlight` clients sends its next request when its last one ends. Lengths differ enough
// that prompts come at all times: a step has each other request in its prompt with one chance.

/** Sums over a batch, as pinn/physics/batch_sums.py: equal decodes, and kinds of equal chunks. */
function batchSums(decodes, context, chunks, window) {
  const most = window === null ? Infinity : window;
  const seen = (tokens) => {
    const inside = Math.min(tokens, most);
    return (inside * (inside + 1)) / 2 + (tokens > inside ? (tokens - inside) * inside : 0);
  };
  const pairs = (c) => c.count * ((c.tokens + c.cached) * (c.tokens + c.cached + 1) / 2
    - (c.cached * (c.cached + 1)) / 2);
  const sum = (value) => chunks.reduce((total, chunk) => total + value(chunk), 0);
  return {
    prefill_requests: sum((c) => c.count),
    decode_requests: decodes,
    prefill_tokens: sum((c) => c.count * c.tokens),
    decode_context: decodes * (context + 1),
    prefill_cached: sum((c) => c.count * c.cached),
    prefill_pairs: sum(pairs),
    windowed_decode_context: decodes * Math.min(context + 1, most),
    windowed_prefill_cached: sum((c) => c.count * Math.min(c.cached, most)),
    windowed_prefill_pairs: sum((c) => c.count * (seen(c.tokens + c.cached) - seen(c.cached))),
  };
}

/** Seconds of each part of a step, in the order in which parts first come. */
function stepParts(server, sums) {
  const found = {};
  stepFormulas(server.costs, sums).forEach((value, i) => {
    const part = STEP_FEATURES[i][1];
    found[part] = (found[part] || 0) + server.beta[i] * value;
  });
  return found;
}

function stepSeconds(server, decodes, context, chunks) {
  const values = stepFormulas(server.costs, batchSums(decodes, context, chunks, server.window));
  return values.reduce((total, value, i) => total + server.beta[i] * value, 0);
}

/** Requests of this length that run at once, and what stops more. */
function capacity(server, load) {
  const tokens = load.context + load.prompt + load.output;
  const held = Math.floor(server.kv_tokens / tokens);
  const said = (count) => count.toLocaleString("en");
  if (tokens > server.max_model_len) {
    return { requests: 0, reason: `a request has ${said(tokens)} tokens, the engine takes ${said(server.max_model_len)}` };
  }
  return held < server.max_requests
    ? { requests: held, reason: `the KV cache of ${said(server.kv_tokens)} tokens holds ${said(held)} requests` }
    : { requests: server.max_requests, reason: `a step has at most ${said(server.max_requests)} requests` };
}

/** Steps that prompts take in the mean, of lengths from 0.7 to 1.3 times this one. */
function meanChunks(prompt, most) {
  const total = (tokens) => { // ceil(x / most), added up for x from 0 to so many tokens
    const whole = Math.floor(tokens / most);
    return (whole + 1) * (tokens - (whole * most) / 2);
  };
  return (total(1.3 * prompt) - total(0.7 * prompt)) / (0.6 * prompt);
}

/** How a request's steps are shared out: see docs/explore.md. */
function life(server, load) {
  const { inFlight, prompt, output } = load;
  const others = inFlight - 1;
  const chunks = meanChunks(prompt, Math.max(server.budget - inFlight, 1));
  // The step in flight, and the one that is made up already: asynchronous scheduling.
  const waits = others > 0 ? 2 : 0;
  const steps = Math.max(output - 1 + chunks + waits, (inFlight * (prompt + output - 1)) / server.budget);
  const decodes = (others * (output - 1)) / steps;
  const prompts = (others * chunks) / steps;
  const room = Math.max(server.budget - 1 - decodes, 1);
  const busy = (prompts * (prompt / chunks)) / room;
  const chance = others > 0 ? Math.min(Math.max(1 - (1 - chunks / steps) ** others, busy), 1) : 0;
  return { chunks, decodes, prompts, room, busy, chance, waits: steps - (output - 1) - chunks };
}

/** Mean time per token and to the first token (s), and tokens/s, of clients in a closed loop. */
function serve(server, load) {
  const { inFlight, context, prompt, output } = load;
  const at = life(server, load);
  const size = prompt / at.chunks;
  const held = context + prompt + output / 2;
  const chunk = { count: 1, tokens: size, cached: context + (prompt * (at.chunks - 1)) / (2 * at.chunks) };
  const others = (count) => ({ ...chunk, count });
  const alone = stepSeconds(server, 1 + at.decodes, held, []);
  const mixed = at.chance > 0
    ? stepSeconds(server, 1 + at.decodes, held, [others(at.prompts / at.chance)]) : alone;
  const tpot = (1 - at.chance) * alone + at.chance * mixed;
  const beside = others(Math.min(at.prompts, Math.max(at.room + 1 - size, 0) / size));
  const own = at.chunks * stepSeconds(server, at.decodes, held, [chunk, beside]);
  // A request comes at any moment: what is left of a step is longer where few steps are long.
  const left = ((1 - at.chance) * alone ** 2 + at.chance * mixed ** 2) / (2 * tpot);
  const waiting = inFlight > 1 ? left + (at.waits - 1) * tpot : 0;
  // Prompts that wait for others' prompts, as if each came at random (M/D/1).
  const queue = Math.min(at.busy / (2 * (1 - Math.min(at.busy, 0.99))), inFlight - 1) * mixed * at.chunks;
  const server_s = server.first_token.constant_s + server.first_token.per_prompt_token_s * (context + prompt);
  const ttft = server_s + waiting + own + queue;
  return withRates(server, load, tpot, ttft);
}

function withRates(server, load, tpot, ttft) {
  const seconds = ttft + (load.output - 1) * tpot + server.completion_s;
  const tokens = (load.inFlight * load.output) / seconds;
  return { tpot, ttft, tokens, perGpu: tokens / server.gpus, perUser: 1 / tpot };
}

/** The same at both ends of the 90 % interval; null where none is known. */
function serveInterval(server, load, middle) {
  if (server.half_widths === null) return null;
  const { tpot, ttft } = server.half_widths;
  const end = (sign) => withRates(
    server, load, middle.tpot * Math.exp(sign * tpot), middle.ttft * Math.exp(sign * ttft));
  return { fast: end(-1), slow: end(1) };
}
