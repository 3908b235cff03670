// The page of `verbena serve --web`, and of a report of `verbena scenario run --html`. Names come from programs, so all
// data becomes text nodes and attributes, never markup.
"use strict";
(() => {
const $ = (selector, root = document) => root.querySelector(selector);
const SVG = "http://www.w3.org/2000/svg";

// make returns an element. Attributes with a function as value are event handlers.
function make(tag, attributes, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child != null && child !== false) node.append(child);
  return node;
}
function setText(node, text) { if (node.textContent !== text) node.textContent = text; }
function setAttr(node, name, value) { if (node.getAttribute(name) !== value) node.setAttribute(name, value); }
function setHidden(node, hidden) { if (node.hidden !== hidden) node.hidden = hidden; }

// sync makes the children of a node those of a list, and keeps the children that stay, with their focus.
function sync(parent, list, keyOf, create, update) {
  const have = parent.keyed || (parent.keyed = new Map());
  const want = new Set();
  let at = parent.firstChild;
  for (const item of list) {
    const key = keyOf(item);
    if (want.has(key)) continue;
    want.add(key);
    let node = have.get(key);
    if (!node) { node = create(item); have.set(key, node); }
    node.item = item;
    update(node, item);
    if (node === at) at = at.nextSibling; else parent.insertBefore(node, at);
  }
  for (const [key, node] of have) if (!want.has(key)) { node.remove(); have.delete(key); }
}

const plural = (n, one, many = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
function decimal(v) {
  for (const [n, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (v >= n) return (v / n).toFixed(1) + unit;
  return v >= 10 || v === 0 ? String(Math.round(v)) : v.toFixed(1).replace(/\.0$/, "");
}
function bytes(n) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (n >= size) return (n / size).toFixed(1).replace(/\.0$/, "") + " " + unit;
  return n + " B";
}
const clock = (text) => new Date(text).toLocaleTimeString("en-GB");
function duration(ns) {
  if (ns >= 1e9) return (ns / 1e9).toFixed(2).replace(/\.?0+$/, "") + " s";
  if (ns >= 1e6) return (ns / 1e6).toFixed(1).replace(/\.0$/, "") + " ms";
  return (ns / 1e3).toFixed(1).replace(/\.0$/, "") + " µs";
}

// ---------------------------------------------------------------- state

let meta = null, now = null, before = null;
const resentAt = new Map(); // key of a queue pair: [time, retransmits] of the latest states
const stuckSince = new Map(); // key of a queue pair: since when nothing was acknowledged
const recently = 6000; // ms for which a retransmission counts as present
const often = 4; // retransmissions in that time that need attention; a busy machine causes single ones
const qpKey = (q) => `${q.device}/${q.num}`;

// derive computes what the view needs: rates, peers, and the severity of each object.
function derive(s) {
  s.at = Date.parse(s.time);
  for (const list of ["devices", "links", "stats", "qps", "programs", "faults"]) s[list] = s[list] || [];
  s.dt = before ? (s.at - before.at) / 1000 : 0;
  s.link = new Map(s.links.map((l) => [l.name, l]));
  s.counters = new Map(s.stats.map((x) => [x.dev, x.counters]));
  s.home = new Map(); // address: device
  for (const l of s.links) for (const g of l.gids || []) s.home.set(g.addr, l.name);
  s.qp = new Map(s.qps.map((q) => [qpKey(q), q]));
  const why = new Map();
  for (const c of s.causes || []) { const k = `${c.device}/${c.qp}`; if (c.qp && !why.has(k)) why.set(k, c.text); }
  for (const d of s.devices) {
    const l = s.link.get(d.name) || {}, c = s.counters.get(d.name), b = before && before.counters.get(d.name);
    const rate = (test) => {
      if (!c || !b || s.dt <= 0) return 0;
      let n = 0;
      for (const [name, v] of Object.entries(c)) if (test(name)) n += v - (b[name] || 0);
      return Math.max(n / s.dt, 0);
    };
    d.tx = rate((n) => n === "sent_pkts");
    d.rx = rate((n) => n === "rcvd_pkts");
    d.resent = rate((n) => n === "completer_retry_err" || n === "sent_probe_pkts");
    d.dropped = rate((n) => n.startsWith("drop_"));
    d.info = l;
    d.up = l.state === "ACTIVE";
    d.status = d.state !== "running" ? d.state : d.hardware !== "running" ? d.hardware : d.device !== "active" ? d.device : d.up ? "up" : l.link === "flap" ? "flapping" : "link down";
    d.severity = d.status !== "up" ? "bad" : "good";
    d.addrs = (l.gids || []).map((g) => g.addr).filter((a, i, all) => all.indexOf(a) === i && !a.startsWith("fe80:"));
  }
  for (const q of s.qps) {
    const k = qpKey(q), o = before && before.qp.get(k);
    let history = resentAt.get(k);
    if (!history) resentAt.set(k, history = [[s.at, q.retransmits]]);
    history.push([s.at, q.retransmits]);
    while (history.length > 1 && s.at - history[0][0] > recently) history.shift();
    const resentNow = q.retransmits - history[0][1];
    const stuck = o && q.in_flight > 0 && o.in_flight > 0 && o.unacknowledged === q.unacknowledged;
    if (!stuck) stuckSince.delete(k); else if (!stuckSince.has(k)) stuckSince.set(k, o.at || before.at);
    q.resends = o && s.dt > 0 ? Math.max(q.retransmits - o.retransmits, 0) / s.dt : 0;
    q.peerDevice = q.peer ? s.home.get(q.peer) : undefined;
    q.note = ""; q.severity = q.state === "RTS" ? (o && (o.next_psn !== q.next_psn || o.expected_psn !== q.expected_psn) ? "good" : "idle") : "idle";
    if (q.state === "ERR" || q.state === "SQE") { q.severity = "bad"; q.problem = "failed"; q.note = why.get(k) || "failed"; }
    else if (q.slow) { q.severity = "bad"; q.problem = "slow"; q.note = "the memory of its program does not answer"; }
    else if (stuck && s.at - stuckSince.get(k) >= 1800) { q.severity = "bad"; q.problem = "stuck"; q.note = "nothing is acknowledged for " + Math.round((s.at - stuckSince.get(k)) / 1000) + " s"; }
    else if (resentNow >= often) { q.severity = "warn"; q.problem = "resends"; q.note = `retransmits, ${decimal(resentNow / ((s.at - history[0][0]) / 1000))}/s`; }
  }
  for (const map of [resentAt, stuckSince]) for (const k of map.keys()) if (!s.qp.has(k)) map.delete(k);
  return s;
}

const rank = { bad: 0, warn: 1, good: 2, idle: 2 };
const peerText = (q) => !q.peer ? "" : q.peerDevice ? `${q.dest_qpn} on ${q.peerDevice}` : `${q.dest_qpn} at ${q.peer}`;
const programText = (q) => !q.pid ? "" : `${q.program || "?"} (${q.pid})`;

// ---------------------------------------------------------------- the parts of the page

function showSummary() {
  const programs = new Set(now.programs.map((p) => p.pid)).size;
  setText($("#summary"), [plural(now.devices.length, "device"), plural(programs, "program"), plural(now.qps.length, "queue pair"), plural(now.faults.length, "fault rule")].join(" · "));
}

// problems lists what needs attention, the worst first.
function problems() {
  const list = [];
  const add = (severity, key, text, open) => list.push({ severity, key, text, open });
  for (const d of now.devices) {
    if (d.severity === "bad") add("bad", "dev " + d.name, `${d.name}: ${d.status}${d.error ? ": " + d.error : ""}`, () => openDetail({ device: d.name }));
    if (d.dropped >= 1) add("warn", "drop " + d.name, `${d.name} drops ${decimal(d.dropped)} packets/s`, () => openDetail({ device: d.name }));
  }
  for (const [problem, severity, phrase] of [["failed", "bad", "failed"], ["slow", "bad", "wait for memory that does not answer"], ["stuck", "bad", "get no acknowledgement"], ["resends", "warn", "retransmit"]]) {
    const qps = now.qps.filter((q) => q.problem === problem).sort((a, b) => b.retransmits - a.retransmits);
    if (qps.length <= 4) {
      for (const q of qps) add(severity, "qp " + qpKey(q), `QP ${q.num} on ${q.device}${q.program ? ", " + q.program : ""}: ${q.note}`, () => openDetail({ qp: qpKey(q) }));
    } else {
      const where = [...new Set(qps.map((q) => q.device))].join(", ");
      add(severity, "many " + problem, `${plural(qps.length, "queue pair")} on ${where} ${phrase}`, () => { $("#problems").checked = true; $("#filter").value = ""; showQPs(); $("#queuepairs").scrollIntoView(); });
    }
  }
  return list.sort((a, b) => rank[a.severity] - rank[b.severity]);
}

function showAttention() {
  const list = problems(), section = $("#attention");
  section.className = "live " + (list.length ? list[0].severity : "good");
  setText($("h2", section), list.length ? "Needs attention" : "Nothing needs attention");
  sync($("ul", section), list, (p) => p.key,
    () => { const li = make("li", {}, make("span", { class: "tag" }), make("button", { type: "button", class: "plain", click: () => li.item.open() })); return li; },
    (li, p) => { setAttr(li.firstChild, "class", "tag " + p.severity); setAttr(li.firstChild, "aria-label", p.severity === "bad" ? "problem" : "warning"); setText(li.lastChild, p.text); });
}

let pictureWidth = 0; // a layout of the whole page at each refresh would be slow

// showPicture draws the devices, the peers elsewhere, and a line for the connections between each two.
function showPicture() {
  const box = $("#picture"), width = pictureWidth = pictureWidth || Math.max(box.clientWidth, 300), wide = width >= 640;
  const nodes = now.devices.map((d) => ({ key: "dev " + d.name, name: d.name, device: d, severity: d.severity }));
  const edges = new Map(), far = new Map();
  for (const q of now.qps) {
    if (!q.peer) continue;
    let to = "dev " + q.peerDevice;
    if (!q.peerDevice) {
      to = far.size < 12 || far.has("far " + q.peer) ? "far " + q.peer : "far others";
      if (!far.has(to)) far.set(to, { key: to, name: to.slice(4), far: true, severity: "far" });
    }
    const ends = ["dev " + q.device, to].sort(), key = ends.join("|");
    let e = edges.get(key);
    if (!e) { e = { key, ends, qps: 0, severity: "idle", local: !!q.peerDevice, resends: 0, failed: 0 }; edges.set(key, e); }
    e.qps++;
    e.resends += q.resends;
    if (q.severity === "bad") e.failed++;
    if (q.severity === "bad" || q.severity === "warn" && e.severity !== "bad" || q.severity === "good" && e.severity === "idle") e.severity = q.severity;
  }
  nodes.push(...far.values());
  const h = 96, gap = wide ? 26 : 30, w = wide ? Math.min(300, width * 0.32) : width - 78;
  const rows = wide ? Math.ceil(nodes.length / 2) : nodes.length;
  nodes.forEach((n, i) => {
    n.column = wide ? i % 2 : 0;
    n.x = n.column ? width - w - 2 : 2;
    n.y = 4 + (wide ? Math.floor(i / 2) : i) * (h + gap);
  });
  if (wide && nodes.length === 1) nodes[0].x = 2;
  const place = new Map(nodes.map((n) => [n.key, n]));
  let svg = $("svg", box);
  if (!svg) {
    svg = make("svg:svg", { role: "group", "aria-label": "Picture of the devices and their connections" }, make("svg:g"), make("svg:g"));
    box.append(svg);
  }
  setAttr(svg, "viewBox", `0 0 ${width} ${Math.max(rows * (h + gap) - gap + 8, 60)}`);
  const drawn = [...edges.values()].filter((e) => e.ends.every((k) => place.has(k)));
  const labels = (e) => { // the longest text first
    const n = e.local ? Math.ceil(e.qps / 2) : e.qps, count = plural(n, "connection"), failed = e.failed ? `, ${e.failed} ${e.failed === 1 ? "end" : "ends"} failed` : "";
    return [count + failed + (e.resends >= 0.7 ? `, ${decimal(e.resends)} resent/s` : ""), count + failed, count, String(n)];
  };
  let lanes = 0;
  sync(svg.firstChild, drawn, (e) => e.key,
    (e) => {
      const g = make("svg:g", { role: "button", tabindex: "0" }, make("svg:path", { class: "line" }), make("svg:path", { class: "hit" }), make("svg:rect", { rx: 6, height: 20 }), make("svg:text", { "text-anchor": "middle" }));
      onActivate(g, () => { $("#filter").value = g.item.ends.map((k) => k.slice(4)).filter((k, i, all) => all.indexOf(k) === i).join(" "); showQPs(); $("#queuepairs").scrollIntoView({ behavior: "smooth" }); });
      return g;
    },
    (g, e) => {
      setAttr(g, "class", "edge " + (e.severity === "good" ? "busy" : e.severity));
      const a = place.get(e.ends[0]), b = place.get(e.ends[1]), [path, hit, back, text] = g.children;
      let d, x, y;
      if (a.column !== b.column) {
        const [l, r] = a.column ? [b, a] : [a, b], ly = l.y + h / 2, ry = r.y + h / 2, mid = (l.x + w + r.x) / 2;
        d = `M${l.x + w} ${ly} C${mid} ${ly} ${mid} ${ry} ${r.x} ${ry}`;
        x = mid; y = (ly + ry) / 2;
      } else {
        const side = a.column ? -1 : 1, sx = a.column ? a.x : a.x + w, lane = wide ? 60 : 34 + 9 * (lanes++ % 3);
        const ay = a.y + h / 2 - (a === b ? 22 : 8 * Math.sign(b.y - a.y) * -1), by = b.y + h / 2 + (a === b ? 22 : 8 * Math.sign(a.y - b.y));
        d = `M${sx} ${ay} C${sx + side * lane * 1.3} ${ay} ${sx + side * lane * 1.3} ${by} ${sx} ${by}`;
        x = wide ? sx + side * (lane + 50) : sx - 90; y = wide || a !== b ? (ay + by) / 2 : a.y + h + 12;
        if (!wide && a !== b) { y = Math.max(a.y, b.y) - gap / 2; x = a.x + w / 2; }
      }
      setAttr(path, "d", d); setAttr(hit, "d", d);
      const texts = labels(e), room = a.column !== b.column ? width - 2 * w - 16 : w, words = texts.find((t) => t.length * 7.9 + 16 < room) || texts[3], half = words.length * 3.7 + 8;
      setText(text, words); setAttr(text, "x", String(x)); setAttr(text, "y", String(y + 4.5));
      setAttr(back, "x", String(x - half)); setAttr(back, "y", String(y - 10)); setAttr(back, "width", String(half * 2));
      setAttr(text, "class", e.severity === "warn" ? "warn-text" : e.severity === "bad" ? "bad-text" : "");
      setAttr(g, "aria-label", `${texts[0]} between ${e.ends.map((k) => k.slice(4)).join(" and ")}${e.severity === "warn" ? ", retransmitting" : e.severity === "bad" ? ", with failures" : ""}: show the queue pairs`);
    });
  sync(svg.lastChild, nodes, (n) => n.key,
    (n) => {
      const g = make("svg:g", n.far ? {} : { role: "button", tabindex: "0" }, make("svg:rect", { rx: 12 }), ...[0, 1, 2, 3, 4].map(() => make("svg:text")));
      if (!n.far) onActivate(g, () => openDetail({ device: g.item.name }));
      return g;
    },
    (g, n) => {
      const [rect, title, status, address, rates, trouble] = g.children, d = n.device;
      setAttr(g, "class", "node " + (n.far ? "far" : d.severity === "bad" ? "bad" : d.resent >= 0.5 || d.dropped >= 1 ? "warn" : "good"));
      for (const [name, v] of Object.entries({ x: n.x, y: n.y, width: w, height: h })) setAttr(rect, name, String(v));
      const line = (node, text, x, y, cls, anchor) => { setText(node, text); setAttr(node, "x", String(x)); setAttr(node, "y", String(y)); setAttr(node, "class", cls); setAttr(node, "text-anchor", anchor || "start"); };
      line(title, n.name, n.x + 14, n.y + 25, "title");
      if (n.far) { line(address, "another host", n.x + 14, n.y + 46, "sub"); return; }
      line(status, d.status === "up" ? "● up" : "◆ " + d.status, n.x + w - 14, n.y + 25, d.severity === "bad" ? "bad-text" : "sub", "end");
      line(address, (d.addrs[0] || "no address") + (d.addrs.length > 1 ? ` +${d.addrs.length - 1}` : "") + (d.info.shape ? " · limited" : "") + (d.info.mtu ? ` · MTU ${d.info.mtu}` : ""), n.x + 14, n.y + 46, "sub");
      line(rates, `sends ${decimal(d.tx)}/s · receives ${decimal(d.rx)}/s`, n.x + 14, n.y + 66, "");
      const bad = [d.resent >= 0.5 && `resent ${decimal(d.resent)}/s`, d.dropped >= 1 && `dropped ${decimal(d.dropped)}/s`].filter(Boolean).join(" · ");
      line(trouble, bad || (d.armed || d.info.armed ? "armed: " + (d.armed || d.info.armed) : `${plural(d.contexts, "open file")}`), n.x + 14, n.y + 85, bad ? "warn-text" : "sub");
      setAttr(g, "aria-label", `${d.name}: ${d.status}, sends ${decimal(d.tx)} packets per second, receives ${decimal(d.rx)}${bad ? ", " + bad : ""}: show the device`);
    });
}

function onActivate(node, f) {
  node.addEventListener("click", f);
  node.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); f(); } });
}

let showAll = false;
const maxRows = 100;

function showQPs() {
  const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean), only = $("#problems").checked;
  const matches = (q) => {
    const text = `${q.device} ${q.num} ${q.peer || ""} ${peerText(q)} ${programText(q)} ${q.state} ${q.type} ${q.note}`.toLowerCase();
    return words.every((w) => text.includes(w));
  };
  const list = now.qps.filter((q) => (!only || q.problem) && (!words.length || matches(q)));
  list.sort((a, b) => rank[a.severity] - rank[b.severity] || (a.severity === "warn" ? b.retransmits - a.retransmits : 0) || (a.device < b.device ? -1 : a.device > b.device ? 1 : a.num - b.num));
  const shown = showAll ? list : list.slice(0, maxRows);
  setText($("#shown"), list.length === now.qps.length ? plural(list.length, "queue pair") : `${list.length} of ${now.qps.length}`);
  sync($("#queuepairs tbody"), shown, qpKey,
    () => {
      const tr = make("tr", { tabindex: "0" }, make("td", {}, make("span", { class: "tag" })), make("td"), make("td", { "data-label": "to" }), make("td", { "data-label": "by" }), make("td", { class: "n", "data-label": "in flight" }), make("td", { class: "n resent", "data-label": "resent" }), make("td", { class: "note" }));
      onActivate(tr, () => openDetail({ qp: qpKey(tr.item) }));
      return tr;
    },
    (tr, q) => {
      const chosen = String(selected && selected.qp === qpKey(q));
      const sum = [q.severity, q.state, q.type, q.dest_qpn, q.peer, q.peerDevice, q.pid, q.program, q.in_flight, q.retransmits, q.note, q.traced, chosen].join();
      if (tr.sum === sum) return;
      tr.sum = sum;
      const [state, name, peer, program, flight, resent, note] = tr.children;
      setAttr(tr, "class", q.severity);
      setAttr(tr, "aria-selected", chosen);
      setAttr(state.firstChild, "class", "tag " + q.severity);
      setText(state.firstChild, q.state);
      setText(name, `${q.num} on ${q.device}` + (q.type === "RC" ? "" : ` (${q.type})`));
      setText(peer, peerText(q));
      setText(program, programText(q));
      setText(flight, q.in_flight ? String(q.in_flight) : "");
      setText(resent, q.retransmits ? q.retransmits.toLocaleString("en") : "");
      setText(note, q.note || (q.traced ? "traced" : ""));
    });
  const empty = $("#queuepairs .empty");
  setHidden(empty, list.length > 0);
  setText(empty, now.qps.length === 0 ? "No program has a queue pair." : only && !words.length ? "No queue pair has a problem." : "No queue pair matches the filter.");
  setHidden($("#queuepairs table"), list.length === 0);
  setHidden($("#all"), list.length <= maxRows);
  setText($("#all"), showAll ? `Show the first ${maxRows}` : `Show all ${list.length}`);
}

function showLists() {
  const fill = (id, list, key, create, update) => {
    const section = $(id), ul = $("ul, ol", section);
    ul.classList.add("rows");
    sync(ul, list, key, create, update);
    setHidden($(".empty", section), list.length > 0);
  };
  setHidden($("#causes"), !now.causes);
  if (now.causes) {
    fill("#causes", now.causes.slice(0, 100), (c) => `${c.time} ${c.device} ${c.qp}`,
      () => make("li", {}, make("time"), make("span"), make("p", { class: "remedy" })),
      (li, c) => {
        setText(li.children[0], clock(c.time));
        setText(li.children[1], (c.qp ? `QP ${c.qp} on ${c.device}: ` : c.device ? c.device + ": " : "") + c.text);
        setText(li.children[2], c.remedy || "");
        setHidden(li.children[2], !c.remedy);
      });
  }
  fill("#rules", now.faults, (f) => f.id,
    () => { const li = make("li", {}, make("span", {}, make("code"), make("div", { class: "quiet" })), make("button", { type: "button", click: () => openAction("clear", { id: String(li.item.id) }) }, "Remove…")); return li; },
    (li, f) => {
      setText(li.firstChild.firstChild, f.text);
      setText(li.firstChild.lastChild, `rule ${f.id}, ${f.device || "any device"}: hit ${f.hit.toLocaleString("en")} of ${f.seen.toLocaleString("en")}`);
      setAttr(li.lastChild, "aria-label", `Remove rule ${f.id}`);
    });
  fill("#programs", now.programs, (p) => `${p.pid} ${p.device} ${p.zombie}`,
    () => { const li = make("li", {}, make("span", {}, make("span"), make("div", { class: "quiet" })), make("button", { type: "button", click: () => { $("#filter").value = `(${li.item.pid})`; showQPs(); $("#queuepairs").scrollIntoView({ behavior: "smooth" }); } }, "Its queue pairs")); return li; },
    (li, p) => {
      setText(li.firstChild.firstChild, `${p.program || "?"} (${p.pid}) on ${p.device}` + (p.zombie ? ", whose device has gone" : ""));
      setText(li.firstChild.lastChild, `user ${p.uid} · ${plural(p.qps, "QP")} · ${plural(p.cqs, "CQ")} · ${plural(p.mrs, "memory region")} · ${bytes(p.pinned)} pinned`);
      setHidden(li.lastChild, p.qps === 0);
    });
}

// ---------------------------------------------------------------- details

let selected = null, opener = null;

function openDetail(what) {
  if (!selected) opener = document.activeElement;
  if (selected && selected.qp !== what.qp) endTrace();
  selected = what;
  const panel = $("#detail");
  panel.replaceChildren();
  panel.kind = null;
  setHidden(panel, false);
  document.body.classList.add("open");
  showDetail();
  panel.focus({ preventScroll: true });
  panel.scrollTop = 0;
  if (what.qp) pollTrace();
  showQPs();
}

function closeDetail() {
  if (!selected) return;
  endTrace();
  selected = null;
  setHidden($("#detail"), true);
  document.body.classList.remove("open");
  if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  if (now) showQPs();
}

function facts(dl, list) {
  sync(dl, list.filter(([, v]) => v !== "" && v != null).flatMap(([k, v]) => [{ key: "t" + k, tag: "dt", text: k }, { key: "d" + k, tag: "dd", text: String(v) }]), (x) => x.key, (x) => make(x.tag), (node, x) => setText(node, x.text));
}

function showDetail() {
  if (!selected) return;
  const panel = $("#detail");
  const build = (title) => {
    panel.replaceChildren(make("div", { class: "bar" }, make("h2", { id: "detail-title" }, title), make("span", { class: "space" }), make("button", { type: "button", click: closeDetail, "aria-label": "Close the details" }, "Close")));
    panel.parts = {};
    const add = (name, node) => { panel.parts[name] = node; panel.append(node); };
    return add;
  };
  if (selected.device) {
    const d = now.devices.find((x) => x.name === selected.device);
    if (!d) { if (panel.kind !== "gone") { build(selected.device)("text", make("p", { class: "quiet" }, "The device has been removed.")); panel.kind = "gone"; } return; }
    if (panel.kind !== "device") {
      const add = build(d.name), act = (text, name, preset, cls) => make("button", { type: "button", class: cls, click: () => openAction(name, { name: d.name, ...preset }) }, text);
      add("state", make("p"));
      add("why", make("p", { class: "why" }));
      panel.parts.down = act("Take the link down…", "link", { state: "down" });
      panel.parts.up = act("Take the link up…", "link", { state: "up" });
      panel.parts.unplug = act("Unplug…", "unplug", {});
      panel.parts.plug = act("Plug in…", "plug", {});
      panel.append(make("div", { class: "buttons" }, panel.parts.down, panel.parts.up, act("Flap…", "link", { state: "flap" }), act("Limit, delay or lose…", "link", {}), act("Reset…", "reset", {}, "danger"), panel.parts.unplug, panel.parts.plug, act("Hang…", "hang", {}, "danger"),
        make("button", { type: "button", click: () => openAction("fault", { dev: d.name, drop: "1%" }) }, "Disturb packets…")));
      add("facts", make("dl"));
      panel.append(make("h3", {}, "Counters"));
      add("counters", make("dl"));
      panel.kind = "device";
    }
    const p = panel.parts, l = d.info;
    setAttr(p.state, "class", "tag " + d.severity);
    setText(p.state, d.status);
    setHidden(p.why, !d.error); setText(p.why, d.error || "");
    setHidden(p.down, !d.up); setHidden(p.up, l.link === "up" || !l.link);
    setHidden(p.unplug, d.state === "unplugged"); setHidden(p.plug, d.state !== "unplugged" && d.hardware !== "unreachable");
    facts(p.facts, [["Interface", l.netdev], ["Port", l.state], ["Link", l.link], ["MTU", l.mtu], ["Sends", decimal(d.tx) + " packets/s"], ["Receives", decimal(d.rx) + " packets/s"], ["Limits", l.shape ? shapeText(l.shape) : ""], ["Armed", d.armed || l.armed || ""], ["Device file", l.uverbs], ["Open files", d.contexts], ["Of earlier devices", d.zombies || ""], ["Resets", d.resets || ""], ["Last recovery", d.resets ? duration(d.recovery_ns) : ""],
      ...(l.gids || []).map((g) => ["GID " + g.index, g.addr])]);
    const c = now.counters.get(d.name) || {};
    facts(p.counters, Object.keys(c).filter((k) => c[k]).sort().map((k) => [k, c[k].toLocaleString("en")]));
    return;
  }
  const q = now.qp.get(selected.qp), slash = selected.qp.indexOf("/");
  if (panel.kind !== "qp") {
    const device = selected.qp.slice(0, slash), num = selected.qp.slice(slash + 1), add = build(`QP ${num} on ${device}`);
    add("state", make("p"));
    add("why", make("p", { class: "why" }));
    panel.parts.peer = make("button", { type: "button", click: () => openDetail({ qp: panel.parts.peer.target }) }, "Show its peer");
    panel.append(make("div", { class: "buttons" },
      make("button", { type: "button", click: () => openAction("fault", { dev: device, qp: num, drop: "1%" }) }, "Lose its packets…"),
      make("button", { type: "button", click: () => openAction("fault", { dev: device, qp: num, rnr: "10%" }) }, "Receiver not ready…"), panel.parts.peer,
      make("button", { type: "button", click: () => openDetail({ device }) }, `Show ${device}`)));
    panel.append(make("h3", {}, "Last messages"));
    add("sequenceNote", make("p", { class: "quiet", role: "status" }, "The trace begins…"));
    panel.parts.pause = make("button", { type: "button", "aria-pressed": "false", click: () => { paused = !paused; setAttr(panel.parts.pause, "aria-pressed", String(paused)); setText(panel.parts.pause, paused ? "Continue" : "Pause"); if (!paused) pollTrace(); } }, "Pause");
    paused = false;
    panel.append(make("div", { class: "buttons" }, panel.parts.pause));
    add("sequence", make("div"));
    add("facts", make("dl"));
    panel.insertBefore(panel.parts.facts, panel.querySelector("h3"));
    panel.append(make("h3", {}, "Protocol state"));
    add("protocol", make("dl"));
    panel.kind = "qp";
  }
  const p = panel.parts;
  if (!q) {
    setAttr(p.state, "class", "quiet"); setText(p.state, "The queue pair has been destroyed.");
    const c = (now.causes || []).find((x) => `${x.device}/${x.qp}` === selected.qp);
    setHidden(p.why, !c); setText(p.why, c ? c.text : "");
    setHidden(p.peer, true);
    return;
  }
  setAttr(p.state, "class", "tag " + q.severity);
  setText(p.state, `${q.type}, ${q.state}`);
  setHidden(p.why, !q.note); setText(p.why, q.note); setAttr(p.why, "class", "why " + q.severity);
  p.peer.target = `${q.peerDevice}/${q.dest_qpn}`;
  setHidden(p.peer, !now.qp.has(p.peer.target));
  facts(p.facts, [["Program", programText(q)], ["Peer", peerText(q)], ["Resent", q.retransmits.toLocaleString("en") + (q.resends ? `, now ${decimal(q.resends)}/s` : "")], ["Retries left", q.type === "RC" ? q.retries : ""], ["In flight", plural(q.in_flight, "work request")]]);
  facts(p.protocol, [["Window", bytes(q.window)], ["MTU", q.mtu], ["Oldest unacknowledged PSN", q.unacknowledged], ["Next PSN", q.next_psn], ["PSN expected of the peer", q.expected_psn]]);
}

function shapeText(s) {
  return [s.rate_bps && `rate ${decimal(s.rate_bps)}bit/s`, s.delay_ns && `delay ${duration(s.delay_ns)}`, s.jitter_ns && `jitter ${duration(s.jitter_ns)}`, s.loss && `loss ${(s.loss * 100).toFixed(2).replace(/\.?0+$/, "")} %`].filter(Boolean).join(", ");
}

// ---------------------------------------------------------------- sequence diagram

let paused = false, polling = 0;

async function post(action, args, dry) {
  const r = await fetch("do", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ action, args, dry: !!dry }) });
  const text = await r.text();
  try { return JSON.parse(text); } catch { return { error: text.trim() || r.statusText }; }
}

// pollTrace shows the trace of the selected queue pair, and of its peer if it is in this service, until another is selected.
async function pollTrace() {
  const mine = ++polling;
  while (mine === polling && selected && selected.qp && !paused) {
    const key = selected.qp, slash = key.indexOf("/"), q = now && now.qp.get(key);
    const ends = [{ qpn: key.slice(slash + 1), dev: key.slice(0, slash) }];
    const peer = q && q.peerDevice && now.qp.get(`${q.peerDevice}/${q.dest_qpn}`);
    if (peer && qpKey(peer) !== key) ends.push({ qpn: String(peer.num), dev: peer.device });
    if (!document.hidden) {
      let answers;
      try { answers = await Promise.all(ends.map((e) => post("trace", e))); } catch { answers = []; }
      if (mine !== polling || !selected || selected.qp !== key) return;
      if (answers[0]) showSequence(q, answers[0], answers[1]);
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function endTrace() { polling++; } // the service ends traces that no page reads

const timeNs = (text) => { // the fraction has more digits than a Date keeps
  const m = /\.(\d+)/.exec(text), ms = Date.parse(text.replace(/\.\d+/, ""));
  return ms * 1e6 + (m ? Number((m[1] + "000000000").slice(0, 9)) : 0);
};

// mergeTraces returns the messages and marks of a connection in the order of time. A packet that both ends report is one
// message. A packet that the peer's trace should have and does not have is lost.
function mergeTraces(a, b) {
  const rows = [], own = a.map((e) => ({ ...e, t: timeNs(e.time), from: 0 })), other = (b || []).map((e) => ({ ...e, t: timeNs(e.time), from: 1 }));
  const start = b ? Math.max(own.length ? own[0].t : 0, other.length ? other[0].t : 0) : 0;
  const packets = (e) => { const m = /^(\d+) packets/.exec(e.detail || ""); return m ? Number(m[1]) : 1; };
  const all = [...own, ...other].sort((x, y) => x.t - y.t);
  const end = all.length ? all[all.length - 1].t : 0;
  const sends = [[], []];
  for (const e of all) {
    if (e.event !== "send") continue;
    const row = { kind: "message", t: e.t, from: e.from, op: e.opcode, psn: e.psn, n: packets(e), detail: e.detail, got: b ? 0 : null };
    sends[e.from].push(row);
    rows.push(row);
  }
  for (const e of all) {
    if (e.event === "send") continue;
    if (e.event !== "receive") { rows.push({ kind: "mark", t: e.t, at: e.from, event: e.event, op: e.opcode, psn: e.psn, detail: e.detail }); continue; }
    if (!b) { rows.push({ kind: "message", t: e.t, from: 1 - e.from, op: e.opcode, psn: e.psn, n: 1, detail: e.detail, got: null, foreign: true }); continue; }
    // A packet belongs to the latest message with its PSN: an earlier one is lost.
    const list = sends[1 - e.from];
    for (let i = list.length - 1; i >= 0; i--) {
      const row = list[i];
      if (row.t <= e.t + 50000 && ((e.psn - row.psn) & 0xffffff) < row.n && row.got < row.n && isAck(row.op) === isAck(e.opcode)) { row.got++; break; }
    }
  }
  for (const row of rows) if (row.kind === "message" && b && row.got < row.n && end - row.t < 2e7) row.got = null; // may be in flight
  rows.sort((x, y) => x.t - y.t);
  const joined = []; // the packets of one message that the far end has sent are one row
  for (const r of rows) {
    const last = joined[joined.length - 1];
    if (last && r.foreign && last.foreign && last.from === r.from && !isAck(r.op) && !isAck(last.op) && r.psn === ((last.psn + last.n) & 0xffffff) && / (Middle|Last)/.test(r.op)) last.n++;
    else joined.push(r);
  }
  return joined.filter((r) => r.t >= start);
}
const isAck = (op) => / (Acknowledge|ATOMIC Acknowledge|RDMA READ response)/i.test(op || "");

const shownRows = 30;
function showSequence(q, first, second) {
  const p = $("#detail").parts;
  if (!p || !p.sequence) return;
  const a = first.trace, b = second && second.trace;
  if (!a) { setText(p.sequenceNote, first.error || "There is no trace."); return; }
  let rows = mergeTraces(a.events, b && b.on ? b.events : null);
  const more = rows.length - shownRows;
  rows = rows.slice(-shownRows);
  setText(p.sequenceNote, rows.length === 0 ? "Traced from now on. Messages appear here." : (b && b.on ? "Both ends are in this service." : "The other end is not in this service.") + (more > 0 || a.lost ? " The latest messages:" : ""));
  p.sequence.replaceChildren();
  if (rows.length === 0) return;
  p.sequence.append(drawSequence(rows, [`${a.num} on ${a.device}`, b ? `${b.num} on ${b.device}` : q && q.peer ? `${q.dest_qpn} at ${q.peer}` : "peer"], Math.max(p.sequence.clientWidth, 300)));
}

function drawSequence(rows, names, width) {
  const left = 66, A = left + 26, B = width - 40, rh = 24, top = 46;
  let y = top, last = 0;
  const body = make("svg:g");
  for (const r of rows) {
    if (last && r.t - last > 5e6) {
      body.append(make("svg:text", { x: (A + B) / 2, y: y + 15, class: "gap", "text-anchor": "middle" }, `${duration(r.t - last)} later`));
      y += rh;
    }
    last = r.t;
    const d = new Date(Math.floor(r.t / 1e6)), time = `${String(d.getSeconds()).padStart(2, "0")}.${String(Math.floor(r.t / 1e3) % 1e6).padStart(6, "0")}`;
    const g = make("svg:g", { class: r.kind === "message" ? "msg" : "mark" }, make("svg:text", { x: 0, y: y + 15, class: "time" }, time));
    if (r.kind === "message") drawMessage(g, r, y + 15, r.from ? B : A, r.from ? A : B);
    else drawMark(g, r, y, r.at ? B : A, A, B);
    body.append(g);
    y += rh;
  }
  const h = y + 10;
  return make("svg:svg", { class: "sequence", viewBox: `0 0 ${width} ${h}`, role: "img", "aria-label": `The last messages between QP ${names[0]} and QP ${names[1]}` },
    make("svg:text", { x: A - 26, y: 16, class: "head" }, names[0]), make("svg:text", { x: width, y: 16, class: "head", "text-anchor": "end" }, names[1]),
    make("svg:line", { class: "life", x1: A, x2: A, y1: 26, y2: h }), make("svg:line", { class: "life", x1: B, x2: B, y1: 26, y2: h }), body);
}

function drawMessage(g, r, y, from, to) {
  const nak = /NAK|RNR/.test(r.detail || ""), lost = r.got === 0, some = r.got != null && r.got > 0 && r.got < r.n, dir = Math.sign(to - from);
  let text = (r.op || "").replace(/^(RC|UC|UD|RD|XRC) /, "").replace("Acknowledge", "ACK");
  if (isAck(r.op) && r.detail) text = r.detail === "ACK" ? "ACK" : r.detail;
  text += ` ${r.psn}` + (r.n > 1 ? ` ×${r.n}` : "") + (lost ? " lost" : some ? `, ${r.n - r.got} lost` : "");
  g.classList.add(lost || some ? "bad" : nak ? "warn" : isAck(r.op) ? "ack" : "data");
  const end = lost ? from + (to - from) * 0.72 : to - dir * 2;
  g.append(make("svg:line", { x1: from, x2: end, y1: y, y2: y }));
  if (lost) g.append(make("svg:path", { d: `M${end - 5} ${y - 5} l10 10 m0 -10 l-10 10` }));
  else if (some) g.append(make("svg:path", { d: `M${end - dir * 8} ${y - 5} L${end} ${y} L${end - dir * 8} ${y + 5}` }));
  else g.append(make("svg:path", { d: `M${end} ${y} l${-dir * 9} -4.5 v9 z` }));
  g.append(make("svg:text", { class: "label", x: (from + to) / 2, y: y - 4, "text-anchor": "middle" }, text));
}

function drawMark(g, r, y, x, A, B) {
  const texts = { "send completed": "sent", "receive completed": "received", retry: "sends again", "rnr wait": "waits, receiver not ready", timeout: "no acknowledgement in time", refuse: "refuses", drop: "drops", state: "enters" };
  const ok = r.detail === "success";
  let text = (texts[r.event] || r.event) + (r.event === "refuse" || r.event === "drop" ? ` ${r.psn}` : "") + (r.detail && !ok ? (r.event === "state" || r.event === "rnr wait" ? " " : ": ") + r.detail : "");
  g.classList.add(ok ? "good" : r.event === "state" ? (/ERR|SQE/.test(r.detail) ? "bad" : "ok") : r.event === "retry" || r.event === "rnr wait" || r.event === "timeout" || r.event === "refuse" || r.event === "drop" ? "warn" : "bad");
  const each = g.classList.contains("warn") || g.classList.contains("bad") ? 7.7 : 6.9, max = Math.floor((B - A + 30) / each);
  if (text.length > max) text = text.slice(0, max - 1) + "…";
  const w = text.length * each + 14, left = x === A ? A - 10 : B + 36 - w;
  g.append(make("svg:rect", { x: left, y: y + 3, width: w, height: 18, rx: 6 }), make("svg:text", { class: "label", x: left + w / 2, y: y + 16, "text-anchor": "middle" }, text));
}

// ---------------------------------------------------------------- actions

const done = []; // commands of this page

function openAction(name, preset) {
  const action = meta.actions.find((a) => a.name === name), dialog = $("#dialog"), inputs = new Map();
  const field = (f) => {
    let input;
    if (f.device) {
      input = make("select", {}, f.needed ? null : make("option", { value: "" }, "all"), now.devices.map((d) => make("option", { value: d.name }, d.name)));
    } else if (f.switch) input = make("input", { type: "checkbox" });
    else input = make("input", { type: "text", placeholder: f.placeholder, autocomplete: "off", spellcheck: "false", maxlength: 128, list: f.choices ? "choices-" + f.name : null });
    const value = preset[f.name];
    if (value != null) { if (f.switch) input.checked = value === "true"; else input.value = value; }
    inputs.set(f.name, input);
    return make("label", { class: "field" }, make("span", {}, f.name), input, f.choices ? make("datalist", { id: "choices-" + f.name }, f.choices.map((c) => make("option", { value: c }))) : null, make("small", {}, f.help));
  };
  const near = action.fields.filter((f) => f.needed || preset[f.name] != null || f.argument), rest = action.fields.filter((f) => !near.includes(f));
  const command = make("output", { "aria-label": "Equivalent command" }), error = make("p", { class: "error", role: "alert" });
  const run = make("button", { type: "submit", class: "main" }, "Run");
  const args = () => Object.fromEntries([...inputs].map(([k, i]) => [k, i.type === "checkbox" ? String(i.checked) : i.value.trim()]).filter(([, v]) => v && v !== "false"));
  let timer, turn = 0;
  const check = async () => {
    const mine = ++turn;
    try {
      const a = await post(name, args(), true);
      if (mine !== turn) return;
      setText(command, a.command || ""); setText(error, a.error || "");
      run.disabled = !!a.error;
    } catch { setText(error, "The service does not answer."); }
  };
  const form = make("form", { method: "dialog", input: () => { clearTimeout(timer); timer = setTimeout(check, 120); }, submit: async (e) => {
    e.preventDefault();
    if (run.disabled) return;
    run.disabled = true; setText(run, "Running…"); setText(error, "");
    let a;
    try { a = await post(name, args()); } catch { a = { error: "The service does not answer." }; }
    record(a, name);
    if (a.error) { setText(run, "Run"); run.disabled = false; setText(error, a.error); return; }
    dialog.close();
  } }, near.map(field), rest.length ? make("details", { open: near.length <= 1 && rest.length <= 2 || name === "link" && !preset.state }, make("summary", {}, rest.length > 3 ? "More" : "Options"), make("div", {}, rest.map(field))) : null,
    make("div", { class: "command" }, command, make("button", { type: "button", click: (e) => { navigator.clipboard && navigator.clipboard.writeText(command.textContent).then(() => setText(e.target, "Copied"), () => {}); } }, "Copy")),
    error, make("div", { class: "bar" }, run, make("button", { type: "button", click: () => dialog.close() }, "Cancel")));
  dialog.replaceChildren(make("h2", { id: "dialog-title" }, action.title), form);
  dialog.showModal();
  run.focus();
  if (name === "fault" || name === "verb" || name === "link" && !preset.state) { const i = inputs.get(name === "verb" ? "verb" : name === "link" ? "rate" : ["drop", "rnr"].find((k) => preset[k]) || "drop"); if (i) i.focus(); }
  check();
}

function record(a, name) {
  if (a.command) done.unshift({ time: new Date(), command: a.command, error: a.error, id: a.id, key: Date.now() + name });
  done.length = Math.min(done.length, 50);
  const section = $("#log");
  $("ol", section).classList.add("rows");
  sync($("ol", section), done, (x) => x.key, () => make("li", {}, make("time"), make("code"), make("span", { class: "result" })),
    (li, x) => {
      setText(li.children[0], x.time.toLocaleTimeString("en-GB"));
      setText(li.children[1], x.command);
      setText(li.children[2], x.error || (x.id ? "done: rule " + x.id : "done"));
      li.children[2].classList.toggle("bad", !!x.error);
    });
  setHidden($(".empty", section), done.length > 0);
}

// ---------------------------------------------------------------- scenario

function showScenario(r, live, picture) {
  const body = $("#scenario .body");
  if (!body.parts) {
    body.parts = { verdict: make("p", { class: "verdict" }, make("span", { class: "tag" }), make("strong"), make("span", { class: "quiet" })), error: make("p", { class: "failed" }), failed: make("ul"), img: make("img", { alt: "Timeline of the devices, the programs and the actions" }), checks: make("tbody"), actions: make("tbody"), programs: make("div"), counters: make("tbody") };
    const p = body.parts, more = (title, open, ...nodes) => make("details", { open }, make("summary", {}, title), ...nodes);
    p.timeline = make("div", { class: "timeline", tabindex: "0", role: "group", "aria-label": "Timeline" }, p.img);
    p.checkList = more("Expectations", false, make("table", {}, p.checks));
    body.append(p.verdict, p.error, p.failed, p.timeline, p.checkList, more("Actions", true, make("table", {}, p.actions)), p.programs, more("Counters at the end", false, make("table", {}, p.counters)));
  }
  const p = body.parts, seconds = (ns) => (ns / 1e9).toFixed(3) + " s", failed = (r.checks || []).filter((c) => !c.passed);
  const [tag, name, about] = p.verdict.children;
  setAttr(tag, "class", "tag " + (live ? "warn" : r.passed ? "good" : "bad"));
  setText(tag, live ? "running" : r.passed ? "passed" : "failed");
  setText(name, r.name);
  setText(about, `${new Date(r.began).toLocaleString("en-GB")} · ${seconds(r.took_ns)} · seed ${r.seed}` + (live ? "" : ` · ${(r.checks || []).length - failed.length} of ${(r.checks || []).length} expectations`) + (r.timed_out ? " · time limit" : ""));
  setText(p.error, r.error || ""); setHidden(p.error, !r.error);
  sync(p.failed, failed, (c) => c.subject + c.what, () => make("li", { class: "failed" }), (li, c) => setText(li, `✗ ${c.subject}: ${c.what}: ${c.why}`));
  if (picture && p.img.getAttribute("src") !== picture) p.img.src = picture;
  setHidden(p.timeline, !picture);
  setHidden(p.checkList, !(r.checks || []).length);
  const row = (n) => () => make("tr", {}, Array.from({ length: n }, () => make("td")));
  const cells = (tr, list) => list.forEach((t, i) => setText(tr.children[i], t));
  sync(p.checks, r.checks || [], (c) => c.subject + c.what, row(3), (tr, c) => { tr.className = c.passed ? "" : "failed"; cells(tr, [c.passed ? "✓" : "✗", c.subject, c.what + (c.why ? ": " + c.why : "")]); });
  sync(p.actions, r.actions || [], (a) => a.name, row(3), (tr, a) => { tr.className = a.error ? "failed" : ""; cells(tr, [a.began ? seconds(a.at_ns) : "", a.name + (a.what !== a.name ? ` (${a.what})` : ""), (a.left_out ? "left out" : a.error || a.moment) + (a.rule ? `; hit ${a.rule.hit} of ${a.rule.seen}` : "")]); });
  sync(p.programs, r.programs || [], (x) => x.name, () => make("details", {}, make("summary"), make("div", { class: "output mono", tabindex: "0" })), (d, x) => {
    const how = x.error || (x.killed ? "killed at the time limit" : x.exit ? (x.exit.signal ? "killed by signal " + x.exit.signal : "exit code " + x.exit.code) : x.started ? "running" : "not started");
    setText(d.firstChild, `Output of ${x.name}: ${how}`);
    setText(d.lastChild, (x.lines || []).map((l) => `${seconds(l.at_ns).padStart(10)}  ${l.text}`).join("\n") + (x.more ? `\n… ${x.more} more lines` : "") || "no output");
  });
  sync(p.counters, Object.entries(r.counters || {}).flatMap(([dev, c]) => Object.keys(c).filter((k) => c[k]).sort().map((k) => [dev, k, c[k].toLocaleString("en")])), (c) => c[0] + c[1], row(3), cells);
  setHidden($("#scenario"), false);
}

// ---------------------------------------------------------------- life

function show(s) {
  now = derive(s);
  showSummary();
  showAttention();
  for (const node of document.querySelectorAll(".live")) setHidden(node, false);
  showPicture();
  showQPs();
  showLists();
  showDetail();
  before = now;
}

function setLive(state, text) { setAttr($("#live"), "data-state", state); setText($("#live"), text); document.body.classList.toggle("stale", state === "off"); }

let events = null, retry = 0, heard = 0;
function connect() {
  clearTimeout(retry);
  events = new EventSource("events");
  events.addEventListener("meta", (e) => {
    meta = JSON.parse(e.data);
    const bar = $("#rules .bar");
    if (!$("button", bar)) bar.append(
      make("button", { type: "button", click: () => openAction("fault", { dev: now && now.devices[0] ? now.devices[0].name : "", drop: "1%" }) }, "Disturb packets…"),
      make("button", { type: "button", click: () => openAction("verb", { verb: "", errno: "ENOMEM" }) }, "Fail a verb…"));
  });
  events.addEventListener("message", (e) => {
    const began = performance.now(), s = JSON.parse(e.data);
    heard = Date.now();
    if (s.scenario) showScenario(s.scenario, !s.scenario.checks, "scenario.svg?" + s.scenario.took_ns);
    if (s.error && s.scenario && s.scenario.checks) { setLive("end", "ended"); return; }
    if (s.error) { setLive("off", s.error); return; }
    show(s);
    setLive("on", "live");
    document.documentElement.dataset.refreshMs = (performance.now() - began).toFixed(1);
  });
  events.addEventListener("error", () => {
    setLive("off", heard ? "no answer since " + new Date(heard).toLocaleTimeString("en-GB") : "no answer");
    if (events.readyState === EventSource.CLOSED) { retry = setTimeout(connect, 2000); }
  });
}

let hiddenTimer = 0;
function start() {
  $("#filter").addEventListener("input", () => now && showQPs());
  $("#problems").addEventListener("change", () => now && showQPs());
  $("#all").addEventListener("click", () => { showAll = !showAll; showQPs(); });
  new ResizeObserver(([box]) => {
    const width = Math.max(Math.round(box.contentRect.width), 300);
    if (now && width !== pictureWidth && !$("#network").hidden) { pictureWidth = width; showPicture(); }
  }).observe($("#picture"));
  document.addEventListener("keydown", (e) => {
    if ($("#dialog").open || e.ctrlKey || e.metaKey || e.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (e.key === "Escape") { if (typing) document.activeElement.blur(); else closeDetail(); }
    else if (e.key === "/" && !typing) { e.preventDefault(); $("#filter").focus(); }
    else if ((e.key === "ArrowDown" || e.key === "ArrowUp") && document.activeElement.tagName === "TR") {
      const next = e.key === "ArrowDown" ? document.activeElement.nextElementSibling : document.activeElement.previousElementSibling;
      if (next) { e.preventDefault(); next.focus(); }
    }
  });
  // A page in the background costs the service nothing after half a minute.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) hiddenTimer = setTimeout(() => { clearTimeout(retry); if (events) events.close(); }, 30000);
    else if (!events || events.readyState === EventSource.CLOSED) connect();
  });
  connect();
}

const report = $("#report");
if (report) {
  const r = JSON.parse(report.textContent);
  document.title = r.name + " – verbena";
  setText($("#live"), "report"); setAttr($("#live"), "data-state", "report");
  setText($("#summary"), "a finished scenario");
  showScenario(r, false, "data:image/svg+xml;base64," + $("#report-timeline").textContent);
} else start();
})();
