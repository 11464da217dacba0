// What a page does beside htmx: times of the browser's zone. All of it works without, in UTC.
"use strict";
(function () {
  function local(root) {
    for (const one of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(one.getAttribute("datetime"));
      if (isNaN(at)) continue;
      const two = (n) => String(n).padStart(2, "0");
      one.textContent =
        at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate()) + " " +
        two(at.getHours()) + ":" + two(at.getMinutes()) + ":" + two(at.getSeconds());
      one.setAttribute("data-local", "");
    }
  }
  function quiet(root) { // a form whose button is for browsers without scripts
    for (const one of root.querySelectorAll("select[data-send]")) {
      if (one.dataset.ready) continue;
      one.dataset.ready = "1";
      one.addEventListener("change", function () { one.form.requestSubmit(); });
    }
  }
  document.addEventListener("DOMContentLoaded", function () { local(document); quiet(document); });
  document.addEventListener("htmx:load", function (e) { local(e.detail.elt); quiet(e.detail.elt); });
  document.documentElement.classList.add("js");
})();
