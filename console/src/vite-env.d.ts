declare module "*.css";
declare module "uplot/dist/uPlot.min.css";
