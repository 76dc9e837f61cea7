import { defineConfig } from "vite";

// The manager that `npm run dev` shows: DAYFLY_MANAGER_URL=https://127.0.0.1:7070 npm run dev
const manager = process.env.DAYFLY_MANAGER_URL ?? "https://127.0.0.1:7070";
const proxied = { target: manager, secure: false, changeOrigin: false, ws: true };

export default defineConfig({
  base: "/console/",
  build: {
    target: "es2022",
    outDir: process.env.DAYFLY_CONSOLE ?? "dist",
    emptyOutDir: true,
    modulePreload: false,
    // The content security policy permits no data of scripts or styles.
    assetsInlineLimit: 0,
    license: { fileName: "licenses.md" },
  },
  server: { host: "127.0.0.1", port: 5173, proxy: { "/v1": proxied } },
  preview: { host: "127.0.0.1", port: 5173, proxy: { "/v1": proxied } },
});
