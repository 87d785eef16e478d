// The dashboard as Grafana's own types have it. It is put below as a literal, so that a property that Grafana does not
// know is an error.
import type { Dashboard, FieldConfig, Panel, RowPanel, VariableModel } from "@grafana/schema";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as timeseries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

/** A type as JSON has it: the values of an enumeration are texts. */
type Json<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Json<T[K]> } : T;

/** Options of a panel. What is left out has its default. */
type Some<T> = T extends (infer E)[] ? Some<E>[] : T extends object ? { [K in keyof T]?: Some<T[K]> } : T;

/** A query of Grafana's Prometheus data source, whose type (`PrometheusDataQuery`) the package does not have. */
type Query = {
  refId: string;
  expr: string;
  legendFormat?: string;
  instant?: boolean;
  format?: "time_series" | "table" | "heatmap";
};

type PanelOf<Type extends string, Options, Custom> = Pick<
  Panel,
  "id" | "title" | "description" | "gridPos" | "transformations"
> & {
  type: Type;
  datasource: { type: "prometheus"; uid: string };
  targets: Query[];
  options?: Some<Options>;
  fieldConfig: {
    defaults: Omit<FieldConfig, "custom"> & { custom?: Some<Custom> };
    overrides: NonNullable<Panel["fieldConfig"]>["overrides"];
  };
};

type AnyPanel =
  | PanelOf<"stat", stat.Options, never>
  | PanelOf<"table", table.Options, table.FieldConfig>
  | PanelOf<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | (Omit<RowPanel, "type" | "panels"> & { type: "row"; panels: [] });

type Checked = Omit<Dashboard, "panels" | "templating"> & {
  panels: AnyPanel[];
  templating: { list: VariableModel[] };
};

export const dashboard: Json<Checked> =
