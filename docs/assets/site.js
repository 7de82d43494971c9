/* Typeset what Markdown marked as mathematics: \(...\) and \[...\] in elements of class arithmatex. */
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const text = element.textContent.trim();
    const isDisplay = !text.startsWith("\\(");
    const body = text.replace(/^\\[[(]/, "").replace(/\\[\])]$/, "");
    katex.render(body, element, { displayMode: isDisplay, throwOnError: false });
  }
});
