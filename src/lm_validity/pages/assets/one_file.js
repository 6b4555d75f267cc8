// A site in one file: this page holds all others, packed, and shows one where a link leads to it. The address keeps the
// page's path behind #/, so that going back works. `document.open` keeps window.lmSite and takes all listeners away.
(() => {
  window.lmSite ??= JSON.parse(document.getElementById("site").textContent);
  const site = window.lmSite;
  site.at ??= "index.html";

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  }

  async function show(path) {
    const [page, style, script] = await Promise.all([site.pages[path], site.style, site.script].map(unpack));
    const own = (await unpack(site.router)).replaceAll("</", "<\\/");
    site.at = path;
    const parts = { STYLE: style, SCRIPT: script, ROUTER: own };
    const html = page.replace(/\u0001(STYLE|SCRIPT|ROUTER)\u0001/g, (_, name) => parts[name]);
    document.open();
    document.write(html);
    document.close();
    window.scrollTo(0, 0);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const href = link?.getAttribute("href");
    if (!href || href.startsWith("#") || /^[a-z]+:/i.test(href) || event.ctrlKey || event.metaKey) return;
    const [path] = new URL(href, `http://site/${site.at}`).pathname.slice(1).split("#");
    if (!(path in site.pages)) return;
    event.preventDefault();
    window.location.hash = `#/${path}`;
  });
  window.onhashchange = () => {
    const path = decodeURI(window.location.hash).replace(/^#\//, "");
    if (window.location.hash === "" && site.at !== "index.html") show("index.html");
    else if (window.location.hash.startsWith("#/") && path in site.pages && path !== site.at) show(path);
  };
  window.onhashchange();
})();
