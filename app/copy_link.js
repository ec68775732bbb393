// The page as it stands, as a link: what differs from the defaults goes into the fragment, which browsers never send
// to a server. DEFAULTS is [[name, default], ...] in the order of the values.
(prompt, ...values) => {
  const link = new URLSearchParams();
  if (prompt) link.set("prompt", prompt);
  DEFAULTS.forEach(([name, standard], place) => {
    const value = values[place] ?? "";
    if (String(value) !== String(standard ?? "")) link.set(name, value);
  });
  const fragment = `#${link}`;
  history.replaceState(history.state, "", window.location.pathname + window.location.search + fragment);
  const tell = (text) => document.dispatchEvent(new CustomEvent("arena:told", { detail: text }));
  const inTheBar = () => tell("The link is in the address bar.");
  if (!navigator.clipboard) return inTheBar(); // browsers offer it to https and localhost alone
  navigator.clipboard.writeText(window.location.href)
    .then(() => tell("Link copied: it holds the prompt and all settings."), inTheBar);
}
