// Buttons that copy: `data-copy` names the element whose text it is.

const said = document.getElementById("live");

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const from = document.getElementById(button.dataset.copy);
  if (from) put(from.value ?? from.textContent, button);
});
document.addEventListener("racewatch:copy", (event) => put(event.detail, null));

async function put(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard without https, but on this host: the old way still works there.
    done = old(text);
  }
  tell(done ? "Copied" : "Select it and copy", button);
}

function old(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

// A button says it itself; a key has the place where the page tells of its connection.
function tell(text, button) {
  const place = button || said;
  const before = place.dataset.before ?? place.textContent;
  place.dataset.before = before;
  place.textContent = text;
  setTimeout(() => {
    if (place.textContent === text) place.textContent = before;
    delete place.dataset.before;
  }, 1500);
}
