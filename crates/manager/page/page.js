// The manager's page: asks the API every two seconds and shows what it answers. No part of it is trusted to be HTML.
"use strict";

const EVERY_MS = 2000;
// More between two moments than this: nothing was looked at there.
const GAP_MS = 4 * EVERY_MS;
const BILL_EVERY_MS = 10_000;
const MAX_ROWS = 100;
const MAX_BILLS = 20;
const byId = (id) => document.getElementById(id);

const behind = () => new URLSearchParams(location.hash.slice(1));

// The task whose loans are shown: `#task=ID`, also a beginning or an end of an id.
function wantedTask() {
  const given = behind().get("task") ?? "";
  return /^(\.\.\.)?[0-9a-fA-F]{6,32}$/.test(given) ? given : null;
}

// The token comes behind the address's `#`, which browsers send to nobody, and is taken out of sight at once.
function token() {
  const given = behind().get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    const task = wantedTask();
    history.replaceState(null, "", location.pathname + (task ? `#task=${task}` : ""));
  }
  return sessionStorage.getItem("token");
}

// A ticket opens a session: a cookie, which this script cannot read, takes the token's place.
async function openSession() {
  const ticket = behind().get("ticket");
  if (!ticket) return;
  history.replaceState(null, "", location.pathname);
  sessionStorage.removeItem("token");
  const answer = await fetch("/v1/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ticket }),
  });
  if (answer.ok) sessionStorage.setItem("session", "1");
  else throw new Refused((await answer.json().catch(() => null))?.error?.message ?? "The address was not accepted.");
}

const hasSession = () => sessionStorage.getItem("session") !== null;

class Refused extends Error {}

async function ask(path, read = (answer) => answer.json()) {
  const answer = await fetch(path, {
    headers: token() ? { Authorization: `Bearer ${token()}` } : {},
    signal: AbortSignal.timeout(10_000),
  });
  if (answer.ok) return read(answer);
  const body = await answer.json().catch(() => null);
  const text = body?.error?.message ?? `${path} answered ${answer.status}`;
  throw answer.status === 401 ? new Refused(text) : new Error(text);
}

const quietly = (asked) => asked.catch((error) => { if (error instanceof Refused) throw error; return null; });

// Numbers for people.
const round = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2)).replace(/\.0+$/, "");
function scaled(x, units, step) {
  let unit = 0;
  while (x >= step && unit < units.length - 1) { x /= step; unit += 1; }
  return `${round(x)}${units[unit]}`;
}
const bytes = (x) => scaled(x, [" B", " KiB", " MiB", " GiB", " TiB"], 1024);
const count = (x) => scaled(x, ["", " k", " M", " G"], 1000);
function span(seconds) {
  if (seconds < 1e-6) return `${round(seconds * 1e9)} ns`;
  if (seconds < 1e-3) return `${round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${round(seconds * 1e3)} ms`;
  if (seconds < 120) return `${round(seconds)} s`;
  if (seconds < 7200) return `${round(seconds / 60)} min`;
  return `${round(seconds / 3600)} h`;
}
// Sums of decimals have noise beyond the third one.
const thousandths = (x) => Math.round(x * 1000) / 1000;
const money = (billionths) => (billionths / 1e9).toLocaleString("en", { maximumFractionDigits: 6 });

// Foreign text in one line, as `protocol::text` has it: control characters and bidirectional overrides are escaped.
const MAX_LETTERS = 512;
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
function shown(text) {
  const escaped = String(text).replace(UNSAFE, (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
  return escaped.length > MAX_LETTERS ? `${escaped.slice(0, MAX_LETTERS)}...` : escaped;
}

// Leases begin with the time of their grant, so that several begin alike.
const short = (id) => `...${id.slice(-12)}`;

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = shown(text);
  if (kind) made.className = kind;
  return made;
}

// A table of rows, each an array of texts; a column whose title begins with `>` is of numbers.
function table(id, titles, rows, none) {
  const numbers = titles.map((title) => title.startsWith(">"));
  const head = element("tr");
  titles.forEach((title, i) => head.append(element("th", title.replace(/^>/, ""), numbers[i] ? "n" : "")));
  const body = rows.slice(0, MAX_ROWS).map((row) => {
    const line = element("tr");
    row.forEach((cell, i) => {
      const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
      line.append(element("td", text, `${kind} ${numbers[i] ? "n" : ""}`.trim()));
    });
    return line;
  });
  const note = rows.length > MAX_ROWS ? `and ${rows.length - MAX_ROWS} more` : rows.length === 0 ? none : null;
  if (note) {
    const line = element("tr");
    const cell = element("td", note, "none");
    cell.colSpan = titles.length;
    line.append(cell);
    body.push(line);
  }
  byId(id).replaceChildren(head, ...body);
}

function svg(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = shown(text);
  return made;
}

const WIDTH = 400, HEIGHT = 140, LEFT = 46, BOTTOM = 18, TOP = 14;

function frame(chart, most, label) {
  chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  chart.setAttribute("preserveAspectRatio", "none");
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const y = HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y }));
    parts.push(svg("text", { x: LEFT - 4, y: y + 3, "text-anchor": "end" }, label(share * most)));
  }
  return parts;
}

// Whether what lies between a moment and the one before it was looked at.
const follows = (times, at) => at > 0 && times[at] > times[at - 1] && times[at] - times[at - 1] <= GAP_MS;

// The points that one line connects: a value that is missing, or a gap in time, ends it.
function strokes(times, values, point) {
  const found = [];
  values.forEach((value, at) => {
    if (value === null) return;
    if (!follows(times, at) || values[at - 1] === null) found.push([]);
    found[found.length - 1].push(point(times[at], value));
  });
  return found;
}

// Lines over time. Each series: name, class, values (null where there is none).
function lines(id, times, series, label) {
  const most = Math.max(1e-12, ...series.flatMap(({ values }) => values.filter((value) => value !== null)));
  const parts = frame(byId(id), most, label);
  const [first, last] = [times[0], times[times.length - 1]];
  const x = (time) => LEFT + ((time - first) / Math.max(1, last - first)) * (WIDTH - LEFT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP);
  series.forEach(({ name, kind, values }, i) => {
    for (const points of strokes(times, values, (time, value) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`)) {
      parts.push(svg("polyline", { class: `line ${kind}`, points: points.join(" ") }));
    }
    parts.push(svg("text", { class: kind, x: LEFT + 4 + i * 110, y: 9 }, name));
  });
  const ago = (last - first) / 1000;
  parts.push(svg("text", { x: LEFT, y: HEIGHT - 5 }, ago > 1 ? `${span(ago)} ago` : ""));
  parts.push(svg("text", { x: WIDTH, y: HEIGHT - 5, "text-anchor": "end" }, "now"));
  byId(id).replaceChildren(...parts);
}

// Steps over spans of time that follow each other. Each series: name, class, of (the value of a point).
function steps(id, points, series, label) {
  const most = Math.max(1e-12, ...points.flatMap((point) => series.map(({ of }) => of(point))));
  const parts = frame(byId(id), most, label);
  const whole = Math.max(1, points.reduce((sum, { us }) => sum + us, 0));
  const x = (us) => (LEFT + (us / whole) * (WIDTH - LEFT)).toFixed(1);
  const y = (value) => (HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP)).toFixed(1);
  series.forEach(({ name, kind, of }, i) => {
    let us = 0;
    const corners = points.flatMap((point) => {
      const from = us;
      us += point.us;
      return [`${x(from)},${y(of(point))}`, `${x(us)},${y(of(point))}`];
    });
    parts.push(svg("polyline", { class: `line ${kind}`, points: corners.join(" ") }));
    parts.push(svg("text", { class: kind, x: LEFT + 4 + i * 80, y: 9 }, name));
  });
  parts.push(svg("text", { x: LEFT, y: HEIGHT - 5 }, "0"));
  parts.push(svg("text", { x: WIDTH, y: HEIGHT - 5, "text-anchor": "end" }, span(whole / 1e6)));
  byId(id).replaceChildren(...parts);
}

// Bars of a histogram's buckets: upper bound in seconds, and how many.
function bars(id, buckets) {
  const used = buckets.map(({ n }) => n > 0);
  const [from, to] = [used.indexOf(true), used.lastIndexOf(true)];
  byId(id).parentElement.hidden = from < 0;
  if (from < 0) return;
  const shown = buckets.slice(Math.max(0, from - 1), to + 2);
  const most = Math.max(...shown.map(({ n }) => n));
  const parts = frame(byId(id), most, count);
  const step = (WIDTH - LEFT) / shown.length;
  // As many bounds as there is room for.
  const every = Math.ceil(48 / step);
  shown.forEach(({ bound, n }, i) => {
    const height = (n / most) * (HEIGHT - BOTTOM - TOP);
    parts.push(svg("rect", {
      class: "bar", x: LEFT + i * step + 1, y: HEIGHT - BOTTOM - height, width: Math.max(1, step - 2), height,
    }));
    if ((shown.length - 1 - i) % every === 0) {
      const text = bound === Infinity ? "more" : `≤ ${span(bound)}`;
      parts.push(svg("text", { x: LEFT + (i + 1) * step, y: HEIGHT - 5, "text-anchor": "end" }, text));
    }
  });
  byId(id).replaceChildren(...parts);
}

// A histogram out of the metrics' text: how many fell into each bucket, not below it.
function histogram(text, name) {
  const buckets = [];
  let below = 0;
  for (const [, bound, sum] of text.matchAll(new RegExp(`^${name}_bucket\\{le="([^"]+)"\\} (\\d+)`, "gm"))) {
    buckets.push({ bound: bound === "+Inf" ? Infinity : Number(bound), n: Number(sum) - below });
    below = Number(sum);
  }
  return buckets;
}

let moments = [];
let bill = [];
let billed = -Infinity;

// A bill is long, and nobody reads one every two seconds.
async function lookAtBill() {
  if (performance.now() - billed < BILL_EVERY_MS) return;
  billed = performance.now();
  const page = await quietly(ask(`/v1/bill?from=${Date.now() - 3_600_000}`));
  bill = (page?.lines ?? []).reverse().slice(0, MAX_BILLS);
}

// What was used between each moment and the one before it, for each second. A manager that restarted counts anew.
function rates(times, of) {
  return moments.map((moment, i) => {
    if (!follows(times, i)) return null;
    const used = of(moment) - of(moments[i - 1]);
    return used < 0 ? null : used / ((times[i] - times[i - 1]) / 1000);
  });
}

// Nodes book what they used every two seconds, each at its own time: a mean over some moments is steadier. It ends at a gap.
function smooth(values, over = 5) {
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - over + 1), i + 1);
    const known = near.slice(near.lastIndexOf(null) + 1);
    return known.reduce((a, b) => a + b) / known.length;
  });
}

const timesOf = () => moments.map((moment) => moment.at_ms);

function drawHistory() {
  if (moments.length === 0) return;
  const times = timesOf();
  const share = (part, all) => moments.map((moment) => (moment[all] ? (100 * moment[part]) / moment[all] : 0));
  lines("leased", times, [
    { name: "cores", kind: "a", values: share("cores_leased", "cores") },
    { name: "warm workers", kind: "b", values: share("workers_leased", "workers") },
    { name: "memory", kind: "c", values: share("memory_leased_bytes", "memory_bytes") },
  ], (x) => `${round(x)} %`);
  const seconds = (field) => smooth(rates(times, (moment) => moment.used[field] / 1e6));
  lines("used", times, [
    { name: "allocated", kind: "a", values: seconds("allocated_us") },
    { name: "computing", kind: "b", values: seconds("computing_us") },
    { name: "polling", kind: "c", values: seconds("polling_us") },
  ], (x) => `${round(x)} s/s`);
  lines("calls", times, [
    { name: "calls", kind: "a", values: smooth(rates(times, (moment) => moment.used.calls)) },
    { name: "of them failed", kind: "b", values: smooth(rates(times, (moment) => moment.used.failures)) },
  ], (x) => `${count(x)}/s`);
}

// Of the same answers as the tables: two of different times would contradict each other.
function drawTiles(nodes, leases) {
  const up = nodes.filter((node) => !["lost", "left"].includes(node.state));
  const sum = (of) => up.reduce((all, node) => all + of(node), 0);
  const leased = (what, show = String) => {
    const all = sum((node) => node.capacity[what]);
    return `${show(thousandths(all - sum((node) => node.free[what])))} of ${show(thousandths(all))}`;
  };
  const calls = smooth(rates(timesOf(), (moment) => moment.used.calls)).pop() ?? null;
  const tiles = [
    ["nodes up", nodes.filter((node) => node.state === "up").length],
    ["leases", leases.filter(live).length],
    ["cores leased", leased("cores")],
    ["warm workers leased", leased("workers")],
    ["memory leased", leased("memory_bytes", bytes)],
    ["calls booked", calls === null ? "not known yet" : `${count(calls)}/s`],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value]) => {
    const tile = element("div", undefined, "tile");
    tile.append(element("b", String(value)), element("span", name));
    return tile;
  }));
}

const live = (lease) => lease.state === "granted" || lease.state === "active";

function drawTables(nodes, leases, tenants) {
  const names = new Map(nodes.map((node) => [node.address.id, node.address.name]));
  const tenantNames = new Map((tenants ?? []).map((tenant) => [tenant.id, tenant.name]));
  table("nodes", ["Node", "State", ">Hot cores", ">Warm workers", ">Memory", ">Leases", ">Heard", "Id"], nodes.map((node) => [
    node.address.name,
    node.state === "up" ? "up" : [node.why ? `${node.state}: ${node.why}` : node.state, "bad"],
    `${node.capacity.cores - node.free.cores} of ${node.capacity.cores}`,
    `${thousandths(node.capacity.workers - node.free.workers)} of ${node.capacity.workers}`,
    `${bytes(node.capacity.memory_bytes - node.free.memory_bytes)} of ${bytes(node.capacity.memory_bytes)}`,
    node.leases, `${span(node.heartbeat_age_ms / 1000)} ago`, node.address.id.slice(0, 12),
  ]), "No node has joined.");
  const now = Date.now();
  table("leases", ["Lease", "State", "Tenant", "Node", ">Workers", ">Cores each", "Mode", "Sandbox", ">Calls", ">Failed", ">Computing", ">Ends in"],
    leases.filter(live).map((lease) => [
      short(lease.lease), lease.state, tenantNames.get(lease.tenant) ?? lease.tenant.slice(0, 12),
      names.get(lease.node) ?? lease.node.slice(0, 12), lease.workers, lease.cores_per_worker, lease.mode, lease.sandbox,
      count(lease.usage.calls), count(lease.usage.failures), span(lease.usage.computing_us / 1e6),
      span(Math.max(0, lease.expires_at_ms - now) / 1000),
    ]), "No lease lives.");
  table("tenants", ["Tenant", ">Spent", ">Budget", ">Leases", ">Workers"], (tenants ?? []).map((tenant) => [
    tenant.suspended ? [`${tenant.name}, suspended`, "bad"] : tenant.name,
    money(tenant.spent), tenant.budget == null ? "none" : money(tenant.budget), tenant.leases, tenant.workers,
  ]), "No tenant to be seen.");
  table("bills", ["Lease", "Tenant", "State", ">Calls", ">Computing", ">Polling", ">Cost"], bill.map((line) => [
    short(line.lease), line.tenant_name, line.state, count(line.usage.calls), span(line.usage.computing_us / 1e6),
    span(line.usage.polling_us / 1e6), money(line.total),
  ]), "Nothing was billed within the last hour.");
}

const cores = (milli) => `${round(milli / 1000)} cores`;
const amount = ({ milli_cores, memory_bytes }) => `${cores(milli_cores)}, ${bytes(memory_bytes)}`;

// Why a node lends nothing now, as far as its status tells.
function nothingLent({ why, mode, calls, now }) {
  if (why) return why;
  if (mode === "watch") return "It only watches.";
  if (!now || now.lent.milli_cores + now.lent.memory_bytes > 0) return "";
  return calls === 0 ? "No long call runs." : "Calls use what they own, or nobody wants more.";
}

function drawHarvest(nodes) {
  const harvesting = nodes.filter(({ harvest }) => harvest);
  byId("harvesting").hidden = harvesting.length === 0;
  table("harvest", ["Node", "Harvest", ">Measured calls", ">Owned now", ">Used now", ">Lent now", ">Borrowed now", "Nothing is lent because"],
    harvesting.map(({ address, harvest }) => [
      address.name, harvest.mode, harvest.calls,
      ...["owned", "used", "lent", "borrowed"].map((what) => (harvest.now ? amount(harvest.now[what]) : "for operators")),
      nothingLent(harvest),
    ]), "");
}

let loans = null;

// A task's loans do not change once they are known.
async function lookAtTask() {
  const wanted = wantedTask();
  byId("task").hidden = !wanted;
  if (!wanted || loans) return;
  byId("task-id").textContent = wanted;
  try {
    loans = await ask(`/v1/tasks/${encodeURIComponent(wanted)}/loans`);
  } catch (error) {
    if (error instanceof Refused) throw error;
    byId("task-note").textContent = shown(error.message);
    return;
  }
  byId("task-id").textContent = shown(loans.task);
  byId("task-note").textContent = `Measured for ${span(loans.us / 1e6)}.`;
  byId("timelines").hidden = false;
  const kinds = { owned: "d", used: "a", lent: "b", borrowed: "c" };
  const names = Object.keys(kinds);
  table("sums", ["", ">Core seconds", ">GiB seconds"], names.map((name) => [
    name, round(loans.sums[name].core_us / 1e6), round(loans.sums[name].mib_s / 1024),
  ]), "");
  const series = (unit) => names.map((name) => ({ name, kind: kinds[name], of: (point) => point[name][unit] }));
  steps("task-cores", loans.points, series("milli_cores"), (x) => round(x / 1000));
  steps("task-memory", loans.points, series("memory_bytes"), bytes);
}

async function look() {
  const after = moments.length ? moments[moments.length - 1].at_ms : 0;
  const [version, health, nodes, leases, more, tenants, metrics] = await Promise.all([
    ask("/v1/version"), ask("/v1/health"), ask("/v1/nodes"), ask("/v1/leases"), ask(`/v1/history?after_ms=${after}`),
    quietly(ask("/v1/tenants")),
    // For operators only.
    quietly(ask("/v1/metrics", (answer) => answer.text())),
    lookAtBill(), lookAtTask(),
  ]);
  const oldest = Date.now() - 3_600_000;
  moments = [...moments, ...more].filter((moment) => moment.at_ms > oldest);
  byId("about").textContent = shown(`${location.host}, Dayfly ${version.version}: ${health.status}`);
  byId("trouble").textContent = health.store_error ? shown(`The store cannot write: ${health.store_error}`) : "";
  byId("entry").hidden = true;
  byId("all").hidden = false;
  drawTiles(nodes, leases);
  drawHistory();
  drawTables(nodes, leases, tenants);
  drawHarvest(nodes);
  bars("grants", metrics ? histogram(metrics, "dayfly_grant_seconds") : []);
  bars("durations", metrics ? histogram(metrics, "dayfly_call_seconds") : []);
}

async function go() {
  let again = EVERY_MS;
  try {
    await openSession();
    if (!token() && !hasSession()) throw new Refused("");
    await look();
  } catch (error) {
    byId("trouble").textContent = error instanceof TypeError ? "The manager does not answer." : shown(error.message);
    if (error instanceof Refused) {
      // Waits for another one.
      sessionStorage.removeItem("token");
      sessionStorage.removeItem("session");
      byId("about").textContent = location.host;
      byId("all").hidden = true;
      byId("entry").hidden = false;
      again = null;
    }
  }
  if (again) setTimeout(go, again);
}

byId("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  go();
});
addEventListener("hashchange", () => { if (token() || behind().get("ticket")) location.reload(); });
go();
