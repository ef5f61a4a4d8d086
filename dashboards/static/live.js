// Keeps an open page up to date: the server says what changed, and the parts of this page that show
// it are fetched again from the address that they came from. Without this script a page is as it
// was loaded.
//
// A part is an element with an id and `data-live`, the topics that it is about; `data-live-pause`,
// milliseconds between two looks at it; `data-source`, where it came from if not with this page.

const sign = document.getElementById("live");
const parts = () => [...document.querySelectorAll("[data-live][id]")];
const topics = new Set(parts().flatMap((part) => part.dataset.live.split(" ")));

let source = null;
let cursor = document.body.dataset.cursor;
let retry = 0;
let fetching = false;
let again = false;
let timer = 0;
let lastFetch = 0;
const stale = new WeakSet();

function say(text, lost) {
  sign.classList.toggle("lost", lost);
  sign.classList.toggle("on", Boolean(text));
  if (sign.textContent !== text) sign.textContent = text;
}

function connect() {
  clearTimeout(retry);
  if (source || !topics.size || document.hidden) return;
  const asked = new URLSearchParams([...topics].map((topic) => ["topic", topic]));
  asked.set("after", cursor);
  source = new EventSource(`/events?${asked}`);
  source.onopen = () => say("live", false);
  source.onmessage = (event) => {
    cursor = event.lastEventId || cursor;
    refresh();
  };
  source.addEventListener("missed", source.onmessage);
  source.onerror = () => {
    say("connection lost, retrying", true);
    // The browser tries again by itself, unless it got an answer that is no stream.
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect();
      retry = setTimeout(connect, 5000);
    }
  };
}

function disconnect() {
  if (source) source.close();
  source = null;
}

// The pause that the parts of this page ask for: a large part is fetched less often.
function pause() {
  return Math.max(500, ...parts().map((part) => Number(part.dataset.livePause || 1000)));
}

function refresh() {
  if (timer) return;
  timer = setTimeout(load, Math.max(250, lastFetch + pause() - Date.now()));
}

async function load() {
  timer = 0;
  if (document.hidden) return;
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  lastFetch = Date.now();
  try {
    const wanted = new Map([[location.href, []]]);
    for (const part of parts()) {
      const from = part.dataset.source || location.href;
      // What was added below and is out of sight waits until it is seen.
      if (part.dataset.source && !inSight(part)) stale.add(part);
      else wanted.set(from, [...(wanted.get(from) || []), part]);
    }
    for (const [from, shown] of wanted) await renew(from, shown);
    if (source && source.readyState === EventSource.OPEN) say("live", false);
  } catch {
    say("connection lost, retrying", true);
    again = true;
  } finally {
    fetching = false;
    if (again) {
      again = false;
      refresh();
    }
  }
}

async function renew(from, shown) {
  const answer = await fetch(from, { headers: { Accept: "text/html" }, cache: "no-store" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of shown) {
    const now = fresh.getElementById(part.id);
    if (!now) continue;
    if (part.matches(".page")) keepRows(part, now);
    if (!part.isEqualNode(now)) morph(part, now);
    tell(part);
  }
}

function inSight(part) {
  const box = part.getBoundingClientRect();
  return box.bottom > -innerHeight && box.top < 2 * innerHeight;
}

const sight = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) {
    if (isIntersecting && stale.delete(target)) renew(target.dataset.source, [target]).catch(() => stale.add(target));
  }
});

// Where a page of the grid follows on this one, new commits at its top push none out of its end:
// they would be on neither.
function keepRows(part, now) {
  if (!part.nextElementSibling || !part.nextElementSibling.matches(".page")) return;
  const rows = now.querySelectorAll("tbody tr");
  if (!rows.length) return;
  const place = (row) => Number(row.id.slice(1));
  const last = place(rows[rows.length - 1]);
  const body = now.querySelector("tbody");
  for (const row of part.querySelectorAll("tbody tr")) {
    if (place(row) < last) body.append(now.ownerDocument.importNode(row, true));
  }
}

// Makes an element what another is, and leaves alone what is the same, so that scrolling, focus and
// what a reader opened stay. Attributes that only a reader or a script sets are not touched.
const OWN = new Set(["open", "class", "data-source"]);

export function morph(have, want) {
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value && name !== "open") have.setAttribute(name, value);
  }
  for (const name of have.getAttributeNames()) {
    if (!want.hasAttribute(name) && !OWN.has(name)) have.removeAttribute(name);
  }
  const named = new Map([...have.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = have.firstChild;
  for (const child of [...want.childNodes]) {
    let found = child.id ? named.get(child.id) : at && !at.id ? at : null;
    if (found && !alike(found, child)) found = null;
    if (!found) {
      have.insertBefore(document.importNode(child, true), at);
      continue;
    }
    if (found !== at) have.insertBefore(found, at);
    else at = at.nextSibling;
    if (found.isEqualNode(child)) continue;
    if (found.nodeType === Node.ELEMENT_NODE) morph(found, child);
    else found.data = child.data;
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function alike(one, other) {
  return one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
}

// The same words as the server's `ago`.
function ago(moment, now) {
  const seconds = (now - moment) / 1000;
  const size = Math.abs(seconds);
  if (size < 10) return "just now";
  if (size >= 60 * 86400) return new Date(moment).toISOString().slice(0, 10);
  const words =
    size < 60 ? `${Math.floor(size)} s`
    : size < 3600 ? `${Math.floor(size / 60)} min`
    : size < 2 * 86400 ? `${Math.floor(size / 3600)} h`
    : `${Math.floor(size / 86400)} d`;
  return seconds > 0 ? `${words} ago` : `in ${words}`;
}

export function tell(part) {
  const now = Date.now();
  for (const time of part.querySelectorAll("time[data-ago]")) {
    const text = ago(Date.parse(time.dateTime), now);
    if (time.textContent !== text) time.textContent = text;
  }
}

// A browser keeps few connections to one host, so only pages that are seen hold one.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    disconnect();
  } else {
    connect();
    tell(document);
  }
});
addEventListener("pagehide", disconnect);
addEventListener("pageshow", (event) => {
  if (event.persisted) connect();
});
// A page of the grid that was added below.
document.addEventListener("racewatch:added", (event) => {
  sight.observe(event.target);
  tell(event.target);
});
setInterval(() => tell(document), 30000);
connect();
