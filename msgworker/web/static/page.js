// What a page does beside htmx. All of it works without: times in UTC, a page as it was loaded.
"use strict";
(function () {
  const POLL = 5000;

  function all(root, what) {
    return [...(root.matches && root.matches(what) ? [root] : []), ...root.querySelectorAll(what)];
  }

  function local(root) { // times in the zone of the browser; UTC stays in their title
    const two = (n) => String(n).padStart(2, "0");
    for (const one of all(root, "time[datetime]")) {
      const at = new Date(one.getAttribute("datetime"));
      if (one.dataset.local || isNaN(at)) continue;
      one.textContent =
        at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate()) + " " +
        two(at.getHours()) + ":" + two(at.getMinutes()) + ":" + two(at.getSeconds());
      one.dataset.local = "1";
    }
    for (const one of all(root, "[data-at]")) { // below a chart
      const at = new Date(one.dataset.at);
      one.textContent = two(at.getHours()) + ":" + two(at.getMinutes());
    }
    for (const one of all(root, "[data-zone]")) {
      const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "this browser's zone";
      if (zone !== "UTC") one.textContent = "in " + zone + "; point at one for UTC";
    }
  }

  function sending(root) { // a choice that is sent at once; its button is for browsers without scripts
    for (const one of all(root, "[data-send]")) {
      if (one.dataset.ready) continue;
      one.dataset.ready = "1";
      one.addEventListener("change", function () { one.form.requestSubmit(); });
    }
  }

  function busy(section) { // somebody chooses or writes in it
    const at = document.activeElement;
    return section.querySelector("input:checked, dialog[open]") ||
      (section.contains(at) && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName)) ||
      (window.getSelection().toString() && section.contains(window.getSelection().anchorNode));
  }

  function load() { // what changes; not in a tab that is not seen
    if (document.hidden) return;
    for (const one of document.querySelectorAll("section.live")) {
      if (!busy(one)) htmx.trigger(one, "changed");
    }
  }

  document.addEventListener("visibilitychange", load);
  document.addEventListener("DOMContentLoaded", function () {
    local(document.body);
    sending(document.body);
    setInterval(load, POLL);
  });
  document.addEventListener("htmx:afterSwap", function () { local(document.body); }); // before it is painted
  document.addEventListener("htmx:load", function (e) { local(e.detail.elt); sending(e.detail.elt); });
  document.documentElement.classList.add("js");
})();
