// What a page does beside htmx. All of it works without: times in UTC, a page as it was loaded.
"use strict";
(function () {
  const POLL = 15000;
  let stream = null, timer = null;

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

  function load(part) {
    for (const one of document.querySelectorAll("section[data-parts]")) {
      const parts = one.dataset.parts.split(" ");
      if ((part === null || parts.includes(part)) && !busy(one)) htmx.trigger(one, "changed");
    }
  }

  function follow() { // one stream for a page; none for a tab that is not seen
    const sections = [...document.querySelectorAll("section[data-parts]")];
    if (!sections.length || stream || document.hidden) return;
    const query = new URLSearchParams();
    for (const part of new Set(sections.flatMap((one) => one.dataset.parts.split(" ")))) {
      query.append("part", part);
    }
    stream = new EventSource(sections[0].dataset.events + "?" + query);
    stream.addEventListener("part", function (e) { load(e.data); });
    stream.onopen = function () { clearInterval(timer); timer = null; };
    stream.onerror = function () {
      timer = timer || setInterval(function () { if (!document.hidden) load(null); }, POLL);
    };
  }

  document.addEventListener("visibilitychange", function () {
    if (!document.hidden) return follow();
    if (stream) stream.close();
    stream = null;
  });
  document.addEventListener("DOMContentLoaded", function () {
    local(document.body);
    sending(document.body);
    follow();
  });
  document.addEventListener("htmx:afterSwap", function () { local(document.body); }); // before it is painted
  document.addEventListener("htmx:load", function (e) { local(e.detail.elt); sending(e.detail.elt); });
  document.documentElement.classList.add("js");
})();
