// Keeps an open page up to date: the server says what changed, and the parts of this page that show
// it are fetched again from the page's own address. Without this script a page is as it was loaded.

const sign = document.getElementById("live");
const TOPICS = new Set();
for (const part of document.querySelectorAll("[data-live]")) {
  for (const topic of part.dataset.live.split(" ")) TOPICS.add(topic);
}

let source = null;
let cursor = document.body.dataset.cursor;
let retry = 0;
let fetching = false;
let again = false;
let timer = 0;
let lastFetch = 0;

function say(text, lost) {
  sign.hidden = !text;
  sign.classList.toggle("lost", lost);
  if (sign.textContent !== text) sign.textContent = text;
}

function connect() {
  clearTimeout(retry);
  if (source || !TOPICS.size || document.hidden) return;
  const asked = new URLSearchParams([...TOPICS].map((topic) => ["topic", topic]));
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
  const pauses = [...document.querySelectorAll("[data-live]")].map((part) => Number(part.dataset.livePause || 1000));
  return Math.max(500, ...pauses);
}

function refresh() {
  if (timer) return;
  const wait = Math.max(250, lastFetch + pause() - Date.now());
  timer = setTimeout(load, wait);
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
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    show(new DOMParser().parseFromString(await answer.text(), "text/html"));
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

function show(fresh) {
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const now = fresh.getElementById(part.id);
    if (now && now.innerHTML !== part.innerHTML) swap(part, now);
  }
}

// Exchanges a part's content, and keeps what the reader did to it: scrolling and focus.
function swap(part, now) {
  const scrolled = [part, ...part.querySelectorAll(".scroll, .log")].map((box) => [box.scrollLeft, box.scrollTop]);
  const focused = part.contains(document.activeElement) ? path(part, document.activeElement) : null;
  part.replaceChildren(...document.importNode(now, true).childNodes);
  [part, ...part.querySelectorAll(".scroll, .log")].forEach((box, n) => {
    if (n < scrolled.length) [box.scrollLeft, box.scrollTop] = scrolled[n];
  });
  if (focused) find(part, focused)?.focus({ preventScroll: true });
  tell(part);
}

// Where an element is: its link's address, or else its place in the tree.
function path(part, element) {
  const address = element.getAttribute("href");
  if (address) return { address };
  const steps = [];
  for (let at = element; at !== part; at = at.parentElement) steps.unshift([...at.parentElement.children].indexOf(at));
  return { steps };
}

function find(part, where) {
  if (where.address) return part.querySelector(`[href="${CSS.escape(where.address)}"]`);
  return where.steps.reduce((at, step) => at?.children[step], part);
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

function tell(part) {
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
setInterval(() => tell(document), 30000);
connect();
