const form = document.getElementById("form"), field = document.getElementById("token"), error = document.getElementById("error");

async function logIn(token) {
  error.textContent = "";
  const answer = await fetch("/login", {
    method: "POST", credentials: "same-origin",
    headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
  });
  if (answer.ok) { location.replace("/"); return; }
  const problem = await answer.json().catch(() => ({}));
  error.textContent = problem.detail || "the service did not answer; try again";
}

form.addEventListener("submit", (event) => { event.preventDefault(); logIn(field.value.trim()); });

// A login link carries the token behind the #, which the browser sends to nobody; it must not stay in the history.
const linked = location.hash.slice(1);
if (linked) {
  history.replaceState(null, "", location.pathname);
  logIn(linked);
}
