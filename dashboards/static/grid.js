// The grid without pages, and a card for what a cell says. Without this script there are links to
// older commits, and a cell's title has the card's words.

const box = document.getElementById("grid");

// Older commits, as they are scrolled to.

let loading = false;
const status = document.querySelector("[data-shown]");

const end = new IntersectionObserver(
  (seen) => {
    if (seen.some((one) => one.isIntersecting)) more();
  },
  { root: box, rootMargin: "1500px" },
);

function last() {
  const pages = box.querySelectorAll(".page");
  return pages[pages.length - 1];
}

async function more() {
  const page = last();
  const from = page.dataset.older;
  if (!from || loading) return;
  loading = true;
  box.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(from, { headers: { Accept: "text/html" } });
    if (!answer.ok) throw new Error(`${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const older = fresh.querySelector(".page");
    if (older && !document.getElementById(older.id)) {
      older.dataset.source = new URL(from, location.href).href;
      const added = document.importNode(older, true);
      page.after(added);
      added.dispatchEvent(new CustomEvent("racewatch:added", { bubbles: true }));
      end.disconnect();
      end.observe(sentinel(added));
      count();
    }
  } catch {
    // The link to older commits is still there.
  } finally {
    loading = false;
    box.removeAttribute("aria-busy");
  }
}

// The last row: where it is near, the next page is fetched.
function sentinel(page) {
  const rows = page.querySelectorAll("tbody tr");
  return rows[rows.length - 1] || page;
}

function count() {
  const shown = box.querySelectorAll("tbody tr").length;
  if (status) status.textContent = `${shown.toLocaleString("en")} commits shown${last().dataset.older ? "" : ", all there are"}`;
  const link = document.querySelector('.pager a[rel="next"]');
  if (link && last().dataset.older) link.href = last().dataset.older;
  else if (link) link.remove();
}

if (box) end.observe(sentinel(last()));

// The card.

const WAIT_MS = 150;
const card = document.createElement("div");
card.className = "card";
card.id = "card";
card.popover = "manual";
card.setAttribute("role", "tooltip");
document.body.append(card);
let shownFor = null;
let waiting = 0;

function cellOf(target) {
  return target instanceof Element ? target.closest(".grid td > a") : null;
}

function show(link) {
  hide();
  const cell = link.parentElement;
  const row = cell.parentElement;
  const heading = row.closest("table").querySelectorAll("thead tr:last-child th");
  const column = heading[[...row.children].indexOf(cell) - 1]?.querySelector("a");
  const what = column ? column.title.replace(/: its rate along the branch$/, "") : "";
  // Its own title would come up beside the card.
  const said = link.title || link.dataset.said || "";
  if (said) link.dataset.said = said;
  link.removeAttribute("title");
  card.replaceChildren(line("what", what), line("of", row.querySelector(".title").textContent));
  const picture = interval(cell);
  if (picture) card.append(picture);
  const figures = /^[0-9]+\/[0-9]+$/.test(link.textContent.trim()) ? link.textContent.trim().replace("/", " of ") + " failed" : "";
  if (figures) card.append(line("figures", figures));
  for (const part of said.split(/; |: /).filter(Boolean)) card.append(line("", part));
  for (const [name, words] of CHANGES) if (cell.classList.contains(name)) card.append(line("what", words));
  if (cell.classList.contains("same")) card.append(line("quiet", "the same trials as the commit below: it has the same build"));
  if (cell.classList.contains("older")) card.append(line("quiet", "in an older environment"));
  if (cell.classList.contains("not-run")) card.append(line("", "nothing measured or ordered: this leads to ordering it"));
  card.showPopover();
  place(link);
  link.setAttribute("aria-describedby", "card");
  shownFor = link;
}

const CHANGES = [
  ["rise", "the rate rose here, likeliest"],
  ["in-rise", "the rate may have risen here"],
  ["fall", "the rate fell here, likeliest"],
  ["in-fall", "the rate may have fallen here"],
];

function line(name, text) {
  const element = document.createElement("p");
  element.className = name;
  element.textContent = text;
  return element;
}

function step(cell, letter) {
  const name = [...cell.classList].find((one) => new RegExp(`^${letter}[0-9]+$`).test(one));
  return name ? Number(name.slice(1)) : 0;
}

// The interval of the cell's strip, larger.
function interval(cell) {
  const high = step(cell, "h");
  if (!high) return null;
  const low = step(cell, "l");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 200 14");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", `whisker ${cell.classList[0]}`);
  svg.setAttribute("aria-hidden", "true");
  for (const [name, x, y, width, height] of [["scale", 0, 6, 200, 2], ["range", low * 10, 3, (high - low) * 10, 8]]) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    rect.setAttribute("class", name);
    Object.entries({ x, y, width, height }).forEach(([key, value]) => rect.setAttribute(key, value));
    svg.append(rect);
  }
  return svg;
}

function place(link) {
  const at = link.getBoundingClientRect();
  const size = card.getBoundingClientRect();
  const left = Math.min(Math.max(4, at.left), innerWidth - size.width - 4);
  const below = at.bottom + 6;
  const top = below + size.height > innerHeight ? Math.max(4, at.top - size.height - 6) : below;
  card.style.left = `${left}px`;
  card.style.top = `${top}px`;
}

function hide() {
  clearTimeout(waiting);
  if (!shownFor) return;
  card.hidePopover();
  shownFor.removeAttribute("aria-describedby");
  // Unless it was renewed meanwhile, with newer words.
  if (!shownFor.title && shownFor.dataset.said) shownFor.title = shownFor.dataset.said;
  shownFor = null;
}

document.addEventListener("pointerover", (event) => {
  if (event.pointerType === "touch") return;
  const link = cellOf(event.target);
  if (link === shownFor && link) return clearTimeout(waiting);
  clearTimeout(waiting);
  if (link) waiting = setTimeout(show, WAIT_MS, link);
  // On the card itself it stays, so that its words can be read and marked.
  else if (!card.contains(event.target)) waiting = setTimeout(hide, WAIT_MS);
});
document.addEventListener("focusin", (event) => {
  const link = cellOf(event.target);
  if (link && link.matches(":focus-visible")) show(link);
  else hide();
});
document.addEventListener("focusout", hide);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});
// Only what is shown: one that is about to be is placed where its cell is by then.
addEventListener("scroll", () => shownFor && hide(), { capture: true, passive: true });
