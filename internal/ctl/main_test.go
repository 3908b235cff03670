package ctl

import (
	"testing"

	"verbena/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
