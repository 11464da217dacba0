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

  // What is live is put in place element by element: what is the same stays the same element, with
  // its focus, its tick, its place on the screen, and what is open of it.
  function key(one) { // by what an element is found among the new ones
    const row = one.nodeName === "TR" && (one.querySelector("th[scope=row]") || one).textContent;
    return one.nodeName + " " + (one.id || row || "");
  }

  function renew(was, now) {
    if (was.isEqualNode(now) || /^(INPUT|SELECT|TEXTAREA)$/.test(was.nodeName)) return;
    if (!was.attributes) { was.data = now.data; return; }
    for (const { name } of [...was.attributes])
      if (name !== "open" && !now.hasAttribute(name)) was.removeAttribute(name);
    for (const { name, value } of now.attributes)
      if (was.getAttribute(name) !== value) was.setAttribute(name, value);
    merge(was, now);
  }

  function merge(was, now) { // the children of `was` become those of `now`
    const twins = new Map(), held = was.nodeName === "TBODY" && was.querySelector("input:checked");
    for (const one of was.childNodes) twins.set(key(one), [...(twins.get(key(one)) || []), one]);
    const pairs = [...now.childNodes].map((one) => [one, (twins.get(key(one)) || []).shift()]);
    const rest = [...twins.values()].flat();
    if (held) { // no row comes, goes or moves while one is ticked
      for (const [one, twin] of pairs) if (twin) renew(twin, one);
      for (const one of rest) if (one.classList) one.classList.add("earlier");
      was.dataset.fresh = pairs.filter(([one, twin]) => !twin && one.querySelector("input")).length;
      return;
    }
    for (const one of rest) one.remove();
    let at = was.firstChild;
    for (const [one, twin] of pairs) {
      if (twin === at && at) at = at.nextSibling;
      else was.insertBefore(twin || one, at);
      if (twin) renew(twin, one);
    }
  }

  htmx.defineExtension("merge", {
    handleSwap: function (style, target, fragment) {
      if (style !== "merge") return false;
      const at = document.activeElement, now = fragment.firstElementChild;
      local(now);
      merge(target, now);
      if (target.contains(at) && at !== document.activeElement) at.focus({ preventScroll: true });
      ticked();
      return [target];
    },
  });

  function ticked() { // says what is ticked in a list, and lets the buttons be that fit it
    for (const form of document.querySelectorAll("form.pick")) {
      const rows = [...form.querySelectorAll("tbody input")], body = form.querySelector("tbody");
      const count = rows.filter((one) => one.checked).length, page = form.querySelector("[data-page]");
      const all = form.elements.all && form.elements.all.checked, fresh = +body.dataset.fresh;
      page.value = rows.map((one) => one.value).join();
      page.checked = count > 0 && count === rows.length;
      page.indeterminate = count > 0 && !page.checked;
      for (const one of form.querySelectorAll("[formaction]"))
        one.disabled = "one" in one.dataset ? all || count !== 1 : !all && !count;
      form.querySelector("[type=reset]").disabled = !all && !count;
      form.querySelector("output").textContent =
        (count && !all ? count + " ticked" : "") +
        (count && fresh ? "; " + fresh + " new, shown when none is ticked" : "");
    }
  }

  document.addEventListener("change", function ({ target }) {
    if ("send" in target.dataset) target.form.requestSubmit(); // its button is for browsers without scripts
    if ("page" in target.dataset)
      for (const one of target.form.querySelectorAll("tbody input")) one.checked = target.checked;
    ticked();
  });
  document.addEventListener("reset", function () { setTimeout(ticked); });

  function load() { // what changes; not in a tab that is not seen
    if (document.hidden) return;
    for (const one of document.querySelectorAll("section.live")) htmx.trigger(one, "changed");
  }

  document.addEventListener("visibilitychange", load);
  document.addEventListener("DOMContentLoaded", function () {
    local(document.body);
    ticked();
    setInterval(load, POLL);
  });
  document.addEventListener("htmx:afterSwap", function () { local(document.body); }); // before it is painted
  document.addEventListener("htmx:load", function (e) { local(e.detail.elt); });
  document.documentElement.classList.add("js");
})();
