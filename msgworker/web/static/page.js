// What a page does beside htmx. All of it works without: times in UTC, a page as it was loaded.
"use strict";
(function () {
  const POLL = 5000;

  function all(root, what) {
    return [...(root.matches && root.matches(what) ? [root] : []), ...root.querySelectorAll(what)];
  }

  function two(n) {
    return String(n).padStart(2, "0");
  }

  function clock(at) {
    return two(at.getHours()) + ":" + two(at.getMinutes()) + ":" + two(at.getSeconds());
  }

  function local(root) { // times in the zone of the browser; UTC stays in their title
    for (const one of all(root, "time[datetime]")) {
      const at = new Date(one.getAttribute("datetime"));
      if (one.dataset.local || isNaN(at)) continue;
      one.textContent =
        at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate()) + " " + clock(at);
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
    if ("keys" in target.dataset) localStorage.setItem(OFF, target.checked ? "on" : "off");
    if ("page" in target.dataset)
      for (const one of target.form.querySelectorAll("tbody input")) one.checked = target.checked;
    ticked();
  });
  document.addEventListener("reset", function () { setTimeout(ticked); });

  function load() { // what changes; not in a tab that is not seen
    if (document.hidden) return;
    for (const one of document.querySelectorAll("section.live")) htmx.trigger(one, "changed");
  }

  // A page that is not renewed looks as it did, so it says that it is not.
  let asOf = new Date();

  function looked(status) { // 200: it is renewed; 0: there was no answer, or none of ours
    const note = document.getElementById("stale");
    if (status === 200) asOf = new Date();
    const day = asOf.toDateString() === new Date().toDateString() ? "" : asOf.toLocaleDateString() + " ";
    const text = status === 200 ? "" : "As of " + day + clock(asOf) + ": the dashboard " +
      (status ? "answers with error " + status : "does not answer") + ". Load the page again if this stays.";
    if (note.textContent !== text) note.textContent = text; // else it would be read out again
    note.hidden = !text;
  }

  // The values of a chart, a column at a time: those of a row of the table beside it.
  let seen = null;

  function rowsOf(chart) {
    return chart.closest("figure").querySelector("tbody").rows;
  }

  function say(chart, place) {
    if (!chart.isConnected) return;
    const rows = rowsOf(chart), n = Math.max(0, Math.min(place, rows.length - 1)), figure = chart.closest("figure");
    if (!rows[n]) return;
    const names = [...figure.querySelectorAll("thead th")], [at, ...values] = [...rows[n].cells].map((one) => one.textContent);
    figure.querySelector("output").textContent = at + ": " + values.map((one, i) => one + " " + names[i + 1].textContent).join(", ");
    const mark = chart.querySelector(".mark") || chart.appendChild(document.createElementNS(chart.namespaceURI, "line"));
    const share = chart.classList.contains("bars") ? (n + 0.5) / rows.length : n / Math.max(1, rows.length - 1);
    for (const [name, value] of Object.entries({ class: "mark", x1: 100 * share + "%", x2: 100 * share + "%", y2: 130 }))
      mark.setAttribute(name, value);
    seen = { chart, place: n };
  }

  function pointed({ target, clientX }) {
    const chart = target.closest("svg.chart");
    if (!chart) return;
    const box = chart.getBoundingClientRect(), left = parseFloat(getComputedStyle(chart).paddingLeft);
    const share = (clientX - box.left - left) / (box.width - left), count = rowsOf(chart).length;
    if (share >= 0) say(chart, chart.classList.contains("bars") ? Math.floor(share * count) : Math.round(share * (count - 1)));
  }

  function left({ target, relatedTarget, pointerType }) { // by the pointer or the focus; a finger's values stay
    const chart = target.closest("svg.chart");
    if (!chart || pointerType === "touch" || chart.contains(relatedTarget)) return;
    for (const one of chart.querySelectorAll(".mark")) one.remove();
    chart.closest("figure").querySelector("output").textContent = "";
    seen = null;
  }

  document.addEventListener("pointermove", pointed);
  document.addEventListener("pointerdown", pointed);
  document.addEventListener("pointerout", left);
  document.addEventListener("focusout", left);
  document.addEventListener("focusin", function ({ target }) {
    if (!seen && target.matches("svg.chart:focus-visible")) say(target, Infinity);
  });

  // Keys: single ones, which may be switched off, and never while somebody writes.
  const OFF = "msgworker_keys";

  function off() {
    try { return localStorage.getItem(OFF) === "off"; } catch (_) { return false; }
  }

  function help() {
    const dialog = document.getElementById("keys");
    dialog.querySelector("input").checked = !off();
    dialog.showModal();
  }

  function step(by) { // the focus goes to the first link of the next row, or of the row before
    const rows = [...document.querySelectorAll("main tbody tr:has(a[href])")].filter((one) => one.getClientRects().length);
    const at = rows.findIndex((one) => one.contains(document.activeElement));
    const row = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
    if (row) row.querySelector("a[href]").focus();
  }

  document.addEventListener("keydown", function (e) {
    const search = document.getElementById("search"), { target, key } = e;
    const arrow = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!search || e.ctrlKey || e.altKey || e.metaKey || e.isComposing || document.querySelector("dialog[open]")) return;
    if (arrow && target.matches("svg.chart")) say(target, seen ? seen.place + arrow : Infinity);
    else if (off() || target.matches("select, textarea, input:not([type=checkbox], [type=radio])")) return;
    else if (key === "/") search.focus();
    else if (key === "j") step(1);
    else if (key === "k") step(-1);
    else if (key === "x") for (const one of document.querySelectorAll("tr:focus-within .box input")) one.click();
    else if (key === "?") help();
    else return;
    e.preventDefault();
  });
  document.addEventListener("click", function ({ target }) {
    if (target.closest("button.keys")) help();
    if (target.closest("dialog button")) target.closest("dialog").close();
  });

  document.addEventListener("htmx:beforeSwap", function ({ detail }) {
    const { status, responseText } = detail.xhr, ours = responseText.includes('id="' + detail.target.id + '"');
    if (status === 401) location.reload(); // the session has ended: to the form
    if (!ours) detail.shouldSwap = false; // the log-in of a proxy, say
    looked(status < 400 && !ours ? 0 : status);
  });
  for (const name of ["htmx:sendError", "htmx:timeout"])
    document.addEventListener(name, function () { looked(0); });
  document.addEventListener("visibilitychange", load);
  document.addEventListener("DOMContentLoaded", function () {
    local(document.body);
    ticked();
    setInterval(load, POLL);
  });
  document.addEventListener("htmx:afterSwap", function () { // before it is painted
    local(document.body);
    if (seen) say(seen.chart, seen.place);
  });
  document.addEventListener("htmx:load", function (e) { local(e.detail.elt); });
  document.documentElement.classList.add("js");
})();
