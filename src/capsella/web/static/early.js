// before anything is painted: the scheme that the reader has chosen. No module, because modules wait for the page.
{
  let scheme = null;
  try {
    scheme = localStorage.getItem("capsella-scheme");
  } catch {
    // a browser that keeps nothing takes the system's.
  }
  if (scheme === "light" || scheme === "dark") document.documentElement.dataset.scheme = scheme;
}
