// What the browser tests ask of a page; each function is called by its name.
const checks = {
  // Pairs of texts of one figure whose letters overlap, each text as a slanted box without the room above and below
  overlaps() {
    const box = (text) => {
      const { x, y, width, height } = text.getBBox();
      const [top, bottom] = [y + 0.22 * height, y + 0.8 * height];
      const matrix = text.getScreenCTM();
      return [[x + 1, top], [x + width - 1, top], [x + width - 1, bottom], [x + 1, bottom]].map(([a, b]) => {
        const point = new DOMPoint(a, b).matrixTransform(matrix);
        return [point.x, point.y];
      });
    };
    const apart = (one, other) =>
      [one, other].some((shape) =>
        [0, 1].some((side) => {
          const [dx, dy] = [shape[side + 1][0] - shape[side][0], shape[side + 1][1] - shape[side][1]];
          const along = (points) => points.map(([x, y]) => x * dx + y * dy);
          const [a, b] = [along(one), along(other)];
          return Math.max(...a) <= Math.min(...b) || Math.max(...b) <= Math.min(...a);
        }),
      );
    const found = [];
    for (const svg of document.querySelectorAll("main svg")) {
      const texts = [...svg.querySelectorAll("text")].filter(
        (text) => text.textContent.trim() && getComputedStyle(text).opacity !== "0" && text.getBBox().width,
      );
      const boxes = texts.map(box);
      for (let i = 0; i < texts.length; i++) {
        for (let j = i + 1; j < texts.length; j++) {
          if (!apart(boxes[i], boxes[j])) {
            found.push([svg.getAttribute("aria-label")?.slice(0, 60), texts[i].textContent, texts[j].textContent]);
          }
        }
      }
    }
    return found;
  },

  // Texts that stick out of their figure
  cut() {
    const found = [];
    for (const svg of document.querySelectorAll("main svg")) {
      const frame = svg.getBoundingClientRect();
      for (const text of svg.querySelectorAll("text")) {
        const own = text.getBoundingClientRect();
        if (!text.textContent.trim() || !own.width || getComputedStyle(text).opacity === "0") continue;
        const out = [frame.left - own.left, own.right - frame.right, frame.top - own.top, own.bottom - frame.bottom];
        if (Math.max(...out) > 10) found.push([svg.getAttribute("aria-label")?.slice(0, 60), text.textContent, Math.round(Math.max(...out))]);
      }
    }
    return found;
  },

  // Figures in which nothing is drawn
  empty() {
    const drawn = (svg) => svg.querySelector("path, circle, line, rect, polyline, image");
    return [...document.querySelectorAll("main svg")].filter((svg) => !drawn(svg)).map((svg) => svg.outerHTML.slice(0, 80));
  },

  // What a reader can operate and sees
  controls() {
    const all = document.querySelectorAll("a[href], button, input, summary, [tabindex='0']");
    return [...all].filter((element) => element.checkVisibility() && element.getClientRects().length).length;
  },

  // What has the focus: none, seen (before), closed (a table), header (of a column), other
  focused() {
    const element = document.activeElement;
    if (!element || element === document.body || element === document.documentElement) return "none";
    if (element.dataset.seen) return "seen";
    element.dataset.seen = "1";
    if (element.tagName === "SUMMARY" && !element.parentElement.open) return "closed";
    return element.matches("th button") ? "header" : "other";
  },
};
return checks[arguments[0]]();
