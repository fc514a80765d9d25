// The one script of the pages: takes the parts of the fleet page anew as the server tells them, without losing where the
// reader is (focus, what is unfolded, what is marked), and says when the page is no longer fresh. Without it the page
// stands still. It runs in browsers and is served as it stands here, so it is plain JavaScript.

export const SCRIPT = `
'use strict';
(() => {
  const live = document.getElementById('live');
  const parts = document.querySelectorAll('[data-part]');
  if (!live || parts.length === 0 || typeof EventSource === 'undefined') return;
  const keyOf = (node) => (node.nodeType === 1 ? node.id || '' : '');
  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const follow = (now, next) => {
    if (now.nodeType !== 1) {
      if (now.nodeValue !== next.nodeValue) now.nodeValue = next.nodeValue;
      return;
    }
    for (const { name } of [...now.attributes])
      if (!next.hasAttribute(name) && name !== 'open') now.removeAttribute(name);
    for (const { name, value } of [...next.attributes])
      if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    children(now, next);
  };
  const children = (now, next) => {
    let at = now.firstChild;
    for (const wanted of [...next.childNodes]) {
      const key = keyOf(wanted);
      if (at && !same(at, wanted) && key) {
        const found = [...now.children].find((child) => child.id === key);
        if (found) now.insertBefore(found, at), (at = found);
      }
      if (at && same(at, wanted)) {
        follow(at, wanted);
        at = at.nextSibling;
      } else now.insertBefore(wanted, at);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };
  const say = (text) => {
    if (live.textContent !== text) live.textContent = text;
  };
  let heard = 0;
  const source = new EventSource('/events');
  source.addEventListener('fleet', (event) => {
    heard = performance.now();
    const told = JSON.parse(event.data);
    for (const part of parts) {
      const text = told.parts[part.dataset.part];
      if (text === undefined) continue;
      const next = document.createElement(part.nodeName);
      next.innerHTML = text;
      children(part, next);
    }
    say('live, as of ' + told.time);
  });
  source.addEventListener('over', () => {
    source.close();
    say('your session is over: load this page again');
  });
  setInterval(() => {
    if (heard > 0 && source.readyState !== 2 && performance.now() - heard > 10000)
      say('not fresh: nothing heard for ' + Math.round((performance.now() - heard) / 1000) + ' s');
    if (source.readyState === 2) say('not live: load this page again');
  }, 1000);
})();
`;
