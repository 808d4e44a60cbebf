// Shows status.json, which holds what `phubctl -o json` prints. Text from the daemon only ever
// becomes text: textContent, never markup.
"use strict";

const PERIOD_MS = 1000;
const STALLED_NS = 5e9;
const byId = (id) => document.getElementById(id);

// Characters that could hide or reorder text are shown as escapes.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
function printable(text) {
  return String(text).replace(HIDDEN,
    (each) => "\\u" + each.charCodeAt(0).toString(16).padStart(4, "0"));
}
function element(tag, className = "", text = null) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null) put(made, text);
  return made;
}
function put(node, text) {
  const shown = printable(text);
  if (node.textContent !== shown) node.textContent = shown;
}
function style(node, className) {
  if (node.className !== className) node.className = className;
}
// Makes the children of `parent` those of `items`. Nodes are kept, and with them what is selected
// and open.
function sync(parent, items, keyOf, make, update) {
  const kept = new Map();
  for (const child of parent.children) kept.set(child.dataset.key, child);
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = kept.get(key);
    kept.delete(key);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of kept.values()) child.remove();
}

function bytes(value) {
  let number = Number(value);
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    ++unit;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}
function duration(ns) {
  const seconds = Number(ns) / 1e9;
  if (seconds === 0) return "-";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}
function rate(ns) {
  if (Number(ns) === 0) return "-";
  const each = 1e9 / Number(ns);
  return `${each >= 100 ? Math.round(each) : each.toPrecision(3)}/s`;
}

// As phubctl does (client/cli/job_state.cc).
function stateOf(job) {
  if (job.state !== "running") return job.state;
  if (job.workers.some((worker) => worker.state === "awaited")) return "waiting";
  const each = Number(job.iteration_ns);
  const stalled = each > 0 && Number(job.iteration_age_ns) > Math.max(STALLED_NS, 10 * each);
  return stalled ? "stalled" : "running";
}
const COLOURS = { running: "good", waiting: "warn", stalled: "bad", failed: "bad" };

function ranks(list) {
  const shown = list.slice(0, 8).map((worker) => worker.rank).join(", ");
  const more = list.length > 8 ? ` and ${list.length - 8} more` : "";
  return `rank${list.length === 1 ? "" : "s"} ${shown}${more}`;
}
// What to know about a job without opening it.
function notesOf(job) {
  const notes = [];
  if (job.fault) notes.push(job.fault);
  if (job.state !== "running") return notes;
  const awaited = job.workers.filter((worker) => worker.state === "awaited");
  const lost = job.workers.filter((worker) => worker.state === "lost");
  if (awaited.length) notes.push(`waits for ${ranks(awaited)} to join`);
  if (lost.length) notes.push(`lost ${ranks(lost)}`);
  if (stateOf(job) === "stalled")
    notes.push(`no iteration for ${duration(job.iteration_age_ns)}`);
  return notes.concat(job.waiting_hints || []);
}

function fact(title, value) {
  return { title, value: value === "" ? "-" : value, key: title };
}
function facts(node, items) {
  sync(node, items.filter((each) => each !== null), (each) => each.key, (each) => {
    const made = element("div");
    made.append(element("dt", "", each.title), element("dd"));
    return made;
  }, (made, each) => put(made.lastChild, each.value));
}

function showDaemon(server, racks) {
  const self = server.rack && server.rack.daemons[server.rack.self];
  put(byId("endpoint"), server.endpoint || server.listen.join(", "));
  const state = byId("state");
  put(state, server.state);
  style(state, `chip ${server.state === "serving" ? "good" : "warn"}`);
  facts(byId("daemon"), [
    fact("Version", server.version),
    fact("Up", duration(server.uptime_ns)),
    fact("Running jobs", server.job_count),
    fact("Memory of jobs", `${bytes(server.memory_bytes)} of ${bytes(server.memory_bytes_max)}`),
    fact("Core loops", `${server.core_count} (${server.simd_target})`),
    fact("Control port", server.listen.join(", ")),
    fact("Data port", server.data_listen.join(", ")),
  ]);
  const places = (server.rack ? server.rack.daemons : [])
    .filter((daemon) => daemon.endpoint)
    .map((daemon) => ({ text: `daemon ${daemon.endpoint}`, self: daemon === self }));
  for (const rack of racks) {
    const is_self = rack === server.endpoint || server.listen.includes(rack);
    places.push({ text: `rack ${rack}`, self: is_self });
  }
  sync(byId("racks"), places, (place) => place.text, () => element("span"), (node, place) => {
    put(node, place.text);
    style(node, place.self ? "self mono" : "mono");
  });
}

const RESOURCES = [["Memory", "memory_bytes", bytes], ["Jobs", "jobs", String],
  ["Workers", "workers", String], ["Keys", "keys", String]];
function showTenant(card, tenant) {
  const [top, use] = card.children;
  put(top.firstChild, tenant.name);
  put(top.lastChild, tenant.state);
  style(top.lastChild, `chip ${tenant.state === "active" ? "good" : "bad"}`);
  sync(use, RESOURCES, ([title]) => title, () => {
    const row = element("div");
    row.style.display = "contents";
    const bar = element("div", "bar");
    bar.append(element("i"));
    row.append(element("span", "quiet"), element("span", "value"), bar);
    return row;
  }, (row, [title, name, text]) => {
    const [label, value, bar] = row.children;
    const used = Number(tenant.usage ? tenant.usage[name] : 0);
    const quota = tenant.quota ? tenant.quota[name] : undefined;
    put(label, title);
    put(value, quota === undefined ? text(used) : `${text(used)} of ${text(quota)}`);
    bar.hidden = quota === undefined;
    const part = Number(quota) > 0 ? Math.min(1, used / Number(quota)) : 1;
    bar.firstChild.style.width = `${100 * part}%`;
    style(bar, part >= 1 ? "bar full" : "bar");
  });
}
function makeTenant() {
  const card = element("article", "tenant card");
  const top = element("div", "top");
  top.append(element("bdi", "name"), element("span", "chip"));
  card.append(top, element("div", "use"));
  return card;
}

function makeJob() {
  const card = element("details", "job card");
  const summary = element("summary");
  const who = element("div", "who");
  who.append(element("bdi", "name"), " ", element("bdi", "tenant quiet"));
  summary.append(who, element("span", "chip"));
  for (const name of ["iteration", "rate", "workers", "memory"]) {
    const cell = element("div");
    cell.append(element("span", "label", name), element("span", name));
    summary.append(cell);
  }
  summary.append(element("div", "note"));
  const more = element("div", "more");
  const table = element("table");
  const head = element("tr");
  for (const [title, number] of COLUMNS)
    head.append(element("th", number ? "number" : "", title));
  const top = element("thead");
  top.append(head);
  table.append(top, element("tbody"));
  const scroll = element("div", "scroll");
  scroll.append(table);
  more.append(element("dl", "facts"), scroll, element("div", "plan"));
  card.append(summary, more);
  return card;
}
const COLUMNS = [["Rank", true], ["State"], ["Host"], ["Lanes", true], ["Heartbeat", true],
  ["Last in rounds", true], ["Others waited", true]];
function showWorkers(body, job) {
  sync(body, job.workers, (worker) => String(worker.rank), () => {
    const row = element("tr");
    for (const [title, number] of COLUMNS)
      row.append(element("td", title === "State" ? "state" : number ? "number" : ""));
    return row;
  }, (row, worker) => {
    const has_come = worker.state !== "awaited";
    const values = [worker.rank, worker.state, has_come ? worker.host : "-", worker.lanes_open,
      has_come ? duration(worker.last_heartbeat_age_ns) : "-", worker.rounds_last,
      duration(worker.straggler_wait_ns)];
    values.forEach((value, i) => put(row.children[i], value));
    const colour = { live: "", left: "", lost: "bad", dead: "bad" }[worker.state];
    style(row, colour === undefined ? "warn" : colour);
  });
}
function straggler(job) {
  const late = job.workers.reduce((most, worker) =>
    Number(worker.straggler_wait_ns) > Number(most.straggler_wait_ns) ? worker : most,
  { straggler_wait_ns: 0 });
  if (!Number(late.straggler_wait_ns)) return "";
  return `rank ${late.rank} (${late.host}), ${duration(late.straggler_wait_ns)}`;
}
function showPlan(node, job) {
  node.hidden = !job.exchange || !job.exchange.plan;
  if (node.hidden) return;
  let picture = node.firstElementChild;
  if (picture === null) node.append(picture = element("img"));
  picture.alt = `exchange plan of ${printable(job.name)}`;
  const source = `plan.svg?tenant=${encodeURIComponent(job.tenant)}` +
    `&job=${encodeURIComponent(job.name)}&run=${encodeURIComponent(job.incarnation)}`;
  if (picture.getAttribute("src") !== source) picture.setAttribute("src", source);
}
function showJob(card, job) {
  const find = (selector) => card.querySelector(selector);
  const state = stateOf(job);
  const colour = COLOURS[state] || "";
  style(card, `job card ${colour}`);
  put(find(".name"), job.name);
  put(find(".tenant"), job.tenant);
  put(find(".chip"), state);
  style(find(".chip"), `chip ${colour}`);
  put(find(".iteration"), Number(job.iteration) === 0 ? "-" : job.iteration);
  put(find(".rate"), state === "running" ? rate(job.iteration_ns) : "-");
  const live = job.workers.filter((worker) => worker.state === "live").length;
  put(find(".workers"), `${live}/${job.world_size}`);
  put(find(".memory"), bytes(job.memory_bytes));
  const notes = notesOf(job).map(printable);
  const note = find(".note");
  if (note.textContent !== notes.join("\n")) note.textContent = notes.join("\n");
  note.hidden = notes.length === 0;
  if (!card.open) return;
  const exchange = job.exchange;
  facts(find(".facts"), [
    fact("Age", duration(job.age_ns)),
    fact("Keys", job.key_count),
    fact("Parameters", bytes(job.parameter_bytes)),
    fact("Chunk", bytes(job.chunk_bytes)),
    fact("On loss", job.on_loss),
    fact("Straggler", straggler(job)),
    exchange ? fact("Exchange", `${exchange.planner} over ${exchange.racks.length} racks, ` +
      `${exchange.trees} trees (${exchange.state})`) : null,
  ]);
  showWorkers(find("tbody"), job);
  showPlan(find(".plan"), job);
}

const ORDER = { stalled: 0, waiting: 1, running: 2, failed: 3, ended: 4 };
function show(status) {
  showDaemon(status.server, status.racks);
  const jobs = status.job_list.jobs;
  const sorted = jobs.map((job, at) => ({ job, at }))
    .sort((a, b) => ORDER[stateOf(a.job)] - ORDER[stateOf(b.job)] || b.at - a.at)
    .map((each) => each.job);
  sync(byId("jobs"), sorted, (job) => `${job.tenant}/${job.incarnation}`, (job) => {
    const card = makeJob();
    card.open = location.hash === "#open" || ["stalled", "waiting"].includes(stateOf(job));
    card.addEventListener("toggle", () => refresh());
    return card;
  }, showJob);
  const count = (list, more) => `${list.length}${more ? ", and more that are not shown" : ""}`;
  put(byId("job-count"), count(jobs, status.job_list.next_page_token));
  byId("no-jobs").hidden = jobs.length > 0;
  const tenants = status.tenant_list.tenants;
  sync(byId("tenants"), tenants, (tenant) => tenant.name, makeTenant, showTenant);
  put(byId("tenant-count"), count(tenants, status.tenant_list.next_page_token));
}

let shown = null; // the last status
function refresh() {
  if (shown !== null) show(shown);
}
let answered = 0; // when
function note(problem) {
  const age = Math.round((Date.now() - answered) / 1000);
  const updated = byId("updated");
  style(updated, problem ? "bad" : "quiet");
  put(updated, !problem ? "updated just now" :
    shown === null ? problem : `${problem}; this is ${age} s old`);
}
async function update() {
  let problem = "";
  try {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    shown = await answer.json();
    answered = Date.now();
    refresh();
    document.body.dataset.ready = "yes";
  } catch (error) {
    problem = error instanceof TypeError ? "phubd does not answer" : error.message;
  }
  note(problem);
  // A page in the background asks nothing.
  if (document.hidden) document.addEventListener("visibilitychange", update, { once: true });
  else setTimeout(update, PERIOD_MS);
}
update();
