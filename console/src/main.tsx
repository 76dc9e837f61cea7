import { render } from "preact";

import { App } from "./app";
import "./style.css";
import { applyTheme } from "./lib/theme";

applyTheme();
const place = document.getElementById("console");
if (place) render(<App />, place);
