// Starts a run with a token. It is kept for this window alone, and goes to this service alone.

const KEPT = "racewatch.token";
const form = document.getElementById("order");
const answer = document.getElementById("order-answer");
const token = form.querySelector("[data-token]");
const button = form.querySelector("[data-order]");

token.value = sessionStorage.getItem(KEPT) ?? "";

form.addEventListener("submit", async (event) => {
  if (event.submitter !== button) return;
  event.preventDefault();
  if (!token.value) {
    answer.textContent = "Starting a run takes a token; without one, use the command below.";
    token.focus();
    return;
  }
  button.disabled = true;
  answer.textContent = "";
  try {
    const response = await fetch("/api/v1/runs", {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${token.value}` },
      body: JSON.stringify(body()),
    });
    const told = await response.json();
    if (!response.ok) throw new Error(told.detail);
    sessionStorage.setItem(KEPT, token.value);
    location.assign(`/runs/${told.id}`);
  } catch (error) {
    answer.textContent = `It was not started: ${error.message}`;
    button.disabled = false;
  }
});

// The request that the server wrote, with what the form says.
function body() {
  const asked = JSON.parse(form.dataset.body);
  asked.queue = form.elements.queue.value;
  asked.matrix.cells[0].trials = Number(form.elements.trials.value);
  return asked;
}
// The token must not get into an address when the command is asked for.
form.addEventListener("formdata", (event) => event.formData.delete("token"));
