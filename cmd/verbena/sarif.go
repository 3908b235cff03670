package main

import (
	"encoding/json"
	"strings"

	"verbena/ib/check"
	"verbena/internal/ctl"
)

// The next types are the parts of SARIF 2.1.0 that a report needs.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name  string      `json:"name"`
		Rules []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID   string    `json:"id"`
		Text sarifText `json:"shortDescription"`
		Help sarifText `json:"help"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID     string              `json:"ruleId"`
		Level      string              `json:"level"`
		Message    sarifText           `json:"message"`
		Count      uint64              `json:"occurrenceCount"`
		Properties ctl.SanitizerReport `json:"properties"`
	}
)

// sarifOf converts reports to SARIF.
func sarifOf(reports []ctl.SanitizerReport) *sarifLog {
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: "verbena sanitizer"}}, Results: []sarifResult{}}
	for _, r := range check.ProgramRules {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{ID: r.Rule.String(),
			Text: sarifText{"The program " + r.Reports + "."}, Help: sarifText{r.Remedy}})
	}
	for _, r := range reports {
		run.Results = append(run.Results,
			sarifResult{RuleID: r.Rule, Level: "error", Message: sarifText{r.What}, Count: r.Count, Properties: r})
	}
	return &sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}

// writeReports replaces the content of a file: by SARIF if its name ends in .sarif, otherwise by a JSON array.
func writeReports(to *resultFile, reports []ctl.SanitizerReport) error {
	if reports == nil {
		reports = []ctl.SanitizerReport{}
	}
	var v any = reports
	if strings.HasSuffix(to.Name(), ".sarif") {
		v = sarifOf(reports)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := to.clear(); err != nil {
		return err
	}
	_, err = to.Write(append(b, '\n'))
	return err
}
