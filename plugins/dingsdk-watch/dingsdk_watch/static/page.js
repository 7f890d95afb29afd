// The live page: requests the status of the runs, and draws it. All text is set as text, never as
// markup, as names and logs come from runs.
"use strict";

const EVERY_MS = 2000;
const COLOURS = 6;
const SVG = "http://www.w3.org/2000/svg";
const state = { runs: [], curves: [], chosen: 0, log: "" };

const byId = (id) => document.getElementById(id);

function element(name, text, ...classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (classes.length) made.className = classes.join(" ");
  return made;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function number(value, digits) {
  if (!isNumber(value)) return "-";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (digits !== undefined) return value.toLocaleString("en-US", { maximumFractionDigits: digits });
  return Number(value.toPrecision(4)).toString();
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return Number(value.toPrecision(3)).toString();
}

function duration(seconds) {
  if (!isNumber(seconds)) return "-";
  const whole = Math.ceil(seconds);
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return whole >= 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole} s`;
}

function told(run) {
  if (run.state === "over") return `over: ${run.reason}`;
  if (run.state === "silent") return `silent for ${duration(run.age_s)}`;
  return run.state;
}

function named(values) {
  const found = Object.entries(values || {}).filter(([, value]) => value !== null);
  return found.map(([name, value]) => `${name} ${isNumber(value) ? number(value) : value}`).join(", ");
}

function drawRuns() {
  const buttons = state.runs.map((run, index) => {
    const button = element("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(index === state.chosen));
    button.append(element("span", "", "dot", `c${index % COLOURS}`), `${run.name} (${told(run)})`);
    button.addEventListener("click", () => {
      state.chosen = index;
      state.log = "";
      draw();
      askForLog();
    });
    return button;
  });
  byId("runs").replaceChildren(...buttons);
}

function drawTable(id, headings, rows) {
  const table = byId(id);
  const head = element("tr");
  head.append(...headings.map((text) => element("th", text)));
  const body = rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((text) => element("td", text)));
    return row;
  });
  const top = element("thead");
  top.append(head);
  const rest = element("tbody");
  rest.append(...body);
  table.replaceChildren(top, rest);
}

function drawTiles(run) {
  const s = run.status;
  const lag = s.policy_lag;
  const tiles = [
    ["run", told(run)],
    ["return", `${number(s.last_return, 1)} (best ${number(s.best_return, 1)})`],
    ["goal", number(s.goal)],
    ["env steps", number(s.env_steps)],
    ["env steps/s", number(s.env_steps_per_s, 0)],
    ["iterations", number(s.train_iter)],
    ["updates/s", number(s.updates_per_s, 0)],
    ["loss", number(s.loss)],
    ["exploration", named(s.exploration) || "-"],
    ["buffer", `${number(s.buffer_fill)} / ${number(s.buffer_capacity)}`],
    ["policy lag", lag ? `${number(lag.mean, 1)} (most ${number(lag.largest)})` : "-"],
    ["workers", `${number(s.workers)}${s.mode ? `, ${s.mode}` : ""}`],
    ["elapsed", duration(s.elapsed_s)],
    ...Object.entries(s.numbers || {}).map(([name, value]) => [name, number(value)]),
    ["left to the limit", run.state === "over" ? "-" : duration(s.left_s)],
    ...Object.entries(s.columns || {}).map(([name, value]) => [name, isNumber(value) ? number(value) : String(value ?? "-")]),
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value]) => {
    const tile = element("div");
    tile.append(element("dt", name), element("dd", value));
    return tile;
  }));
  const notice = [s.held_up_by ? `held up: ${s.held_up_by}` : "", run.error].filter(Boolean).join("; ");
  byId("notice").textContent = notice;
  byId("notice").hidden = !notice;
}

function drawWorkers(run) {
  const tasks = new Map((run.status.tasks || []).map((task) => [task.worker_id, task]));
  const rows = (run.status.connected || []).map((worker) => {
    const task = tasks.get(worker.worker_id);
    const pace = task && isNumber(task.per_s) ? `${number(task.per_s, 1)}/s` : "-";
    return [
      worker.worker_id, worker.role, `${number(worker.lease_s, 0)} s`,
      task ? `${task.kind} ${task.task_id}` : "idle",
      task ? number(task.progress) : "-",
      task && task.is_straggler ? `${pace}, straggler` : pace,
      task && task.waits_for ? task.waits_for : "-",
    ];
  });
  drawTable("workers", ["worker", "role", "lease", "task", "done", "pace", "waits for"], rows);
  byId("workers-section").hidden = !rows.length;
}

function drawSamples(run) {
  const samples = run.status.samples || {};
  const rows = ["collected", "acknowledged", "trained", "live"].map((name) => [name, number(samples[name])]);
  for (const [reason, count] of Object.entries(samples.evicted || {})) rows.push([`evicted: ${reason}`, number(count)]);
  drawTable("samples", ["samples", "count"], rows);
}

function drawComparison() {
  byId("compare").hidden = state.runs.length < 2;
  const headings = ["run", "state", "best", "last", "env steps", "steps/s", "iterations", "updates/s", "elapsed"];
  drawTable("compare-table", headings, state.runs.map((run) => {
    const s = run.status;
    return [
      run.name, told(run), number(s.best_return, 1), number(s.last_return, 1), number(s.env_steps),
      number(s.env_steps_per_s, 0), number(s.train_iter), number(s.updates_per_s, 0), duration(s.elapsed_s),
    ];
  }));
}

// Returns round values for about four grid lines.
function ticks(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / 4));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => span / each <= 4.5);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

function shape(name, attributes, ...classes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  return made;
}

// Returns the width inside a figure: page.css has columns of at least 22rem with gaps of 0.75rem.
function chartWidth() {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const all = byId("charts").clientWidth, gap = 0.75 * rem;
  const columns = Math.max(1, Math.floor((all + gap) / (22 * rem + gap)));
  return Math.max(200, (all - gap * (columns - 1)) / columns - rem - 2);
}

// Returns a chart of series {colour, points: [[x, y]], band: [[x, low, high]]}.
function chart(title, series, goal) {
  const figure = element("figure");
  figure.append(element("figcaption", title));
  const width = chartWidth(), height = 180;
  const [left, right, top, bottom] = [46, 8, 8, 22];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const all = series.flatMap((each) => [
    ...each.points, ...(each.band || []).flatMap(([x, low, high]) => [[x, low], [x, high]]),
  ]);
  if (!all.length) return null;
  const xs = all.map(([x]) => x), ys = all.map(([, y]) => y);
  if (isNumber(goal)) ys.push(goal);
  const x0 = Math.min(0, ...xs), x1 = Math.max(...xs) || 1;
  let y0 = Math.min(...ys), y1 = Math.max(...ys);
  if (y0 === y1) { y0 -= Math.abs(y0) / 2 || 0.5; y1 += Math.abs(y1) / 2 || 0.5; }
  const atX = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - right);
  const atY = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  for (const y of ticks(y0, y1)) {
    svg.append(shape("line", { x1: left, x2: width - right, y1: atY(y), y2: atY(y) }, "grid"));
    const label = shape("text", { x: left - 5, y: atY(y) + 4, "text-anchor": "end" });
    label.textContent = short(y);
    svg.append(label);
  }
  for (const x of ticks(x0, x1)) {
    const label = shape("text", { x: atX(x), y: height - 6, "text-anchor": "middle" });
    label.textContent = byId("axis").value === "elapsed_s" ? `${short(x)} s` : short(x);
    svg.append(label);
  }
  if (isNumber(goal)) svg.append(shape("line", { x1: left, x2: width - right, y1: atY(goal), y2: atY(goal) }, "goal"));
  for (const each of series) {
    const line = (points) => points.map(([x, y]) => `${atX(x).toFixed(1)},${atY(y).toFixed(1)}`).join(" ");
    if (each.band) {
      const edge = [...each.band.map(([x, , high]) => [x, high]), ...[...each.band].reverse().map(([x, low]) => [x, low])];
      svg.append(shape("polygon", { points: line(edge) }, "band", each.colour));
    }
    svg.append(shape("polyline", { points: line(each.points) }, "curve", each.colour));
    const last = each.points.at(-1);
    if (last) svg.append(shape("circle", { cx: atX(last[0]), cy: atY(last[1]), r: 2.6 }, "point", each.colour));
  }
  figure.append(svg);
  return figure;
}

function pointsOf(curves, name) {
  const xs = curves[byId("axis").value] || [];
  const points = (curves[name] || []).map((y, index) => [xs[index], y]);
  return points.filter(([x, y]) => isNumber(x) && isNumber(y));
}

function drawCharts() {
  const axis = byId("axis").value;
  const single = state.runs.length === 1;
  const returns = state.runs.map((run, index) => {
    const found = run.evaluations.filter((each) => isNumber(each.mean) && isNumber(each[axis]));
    return {
      colour: `c${index % COLOURS}`,
      points: found.map((each) => [each[axis], each.mean]),
      band: single ? found.map((each) => [each[axis], each.min, each.max]) : undefined,
    };
  });
  const goals = new Set(state.runs.map((run) => run.status.goal));
  const made = [chart("mean return of evaluations", returns, goals.size === 1 ? [...goals][0] : undefined)];
  const titles = {
    loss: "loss", env_steps_per_s: "env steps a second", updates_per_s: "updates a second",
    buffer_fill: "samples in the buffer", workers: "workers",
  };
  const names = new Set(state.curves.flatMap((curves) => Object.keys(curves)));
  for (const name of names) if (name.includes("/")) titles[name] = name.replace("columns/", "");
  for (const [name, title] of Object.entries(titles)) {
    const series = state.curves.map((curves, index) => ({ colour: `c${index % COLOURS}`, points: pointsOf(curves, name) }));
    made.push(chart(title, series));
  }
  byId("charts").replaceChildren(...made.filter(Boolean));
}

function draw() {
  const run = state.runs[state.chosen];
  drawRuns();
  drawComparison();
  drawTiles(run);
  drawWorkers(run);
  drawSamples(run);
  drawCharts();
  const over = state.runs.every((each) => each.state === "over");
  document.title = `${run.name}: ${told(run)}`;
  byId("connection").textContent = over ? "over" : "live";
  byId("connection").className = over ? "over" : "live";
}

async function ask(path) {
  const answer = await fetch(path, { credentials: "same-origin", redirect: "error" });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function askForLog() {
  const name = state.log ? `&name=${encodeURIComponent(state.log)}` : "";
  const found = await ask(`/log.json?run=${state.chosen}${name}`);
  const select = byId("log-name"), pre = byId("log");
  if (!state.log) state.log = found.name;
  select.replaceChildren(...found.logs.map((each) => {
    const option = element("option", each);
    option.value = each;
    option.selected = each === found.name;
    return option;
  }));
  const isAtEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 20;
  pre.textContent = found.text || "no log yet";
  if (isAtEnd) pre.scrollTop = pre.scrollHeight;
}

async function update() {
  try {
    const [status, curves] = await Promise.all([ask("/status.json"), ask("/curves.json")]);
    state.runs = status.runs;
    state.curves = curves.runs;
    draw();
    await askForLog();
  } catch (error) {
    byId("connection").textContent = `no answer from the server: ${error.message}`;
    byId("connection").className = "lost";
  }
}

async function live() {
  if (!document.hidden) await update();
  setTimeout(live, EVERY_MS);
}

byId("axis").addEventListener("change", drawCharts);
window.addEventListener("resize", () => { if (state.runs.length) drawCharts(); });
byId("log-name").addEventListener("change", (event) => {
  state.log = event.target.value;
  askForLog();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) update(); });
live();
