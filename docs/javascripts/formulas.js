// Draws the formulas that pymdownx.arithmatex marks: \(..\) in a line, \[..\] alone.
for (const place of document.querySelectorAll(".arithmatex")) {
  const text = place.textContent.trim()
  katex.render(text.slice(2, -2), place, {displayMode: text.startsWith("\\["), throwOnError: false})
}
