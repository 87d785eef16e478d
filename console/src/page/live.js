// Brings the figures of a page up to date: asks for the page again, and takes over what is in it.
// Without this script the page says the same when it is loaded again.
(function () {
  "use strict";
  const main = document.querySelector("main[data-live]");
  const state = document.getElementById("live-state");
  if (!main || !state) { return; }
  const pause = Number(main.dataset.live);
  async function refresh() {
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const next = page.querySelector("main[data-live]");
        if (!next) { throw new Error("HTTP " + answer.status); }
        main.replaceChildren(...next.childNodes);
        state.textContent = "live";
      } catch (error) {
        state.textContent = "no answer (" + error.message + "), since " + new Date().toLocaleTimeString();
      }
    }
    setTimeout(refresh, pause);
  }
  setTimeout(refresh, pause);
})();
