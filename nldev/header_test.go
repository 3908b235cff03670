package nldev

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// headerPath is the header that defines the numbers of this package.
const headerPath = "/usr/include/rdma/rdma_netlink.h"

// commandNames maps the commands to their names in the header.
var commandNames = []struct {
	name  string
	value int
}{
	{"RDMA_NLDEV_CMD_GET", cmdGet},
	{"RDMA_NLDEV_CMD_SET", cmdSet},
	{"RDMA_NLDEV_CMD_NEWLINK", cmdNewLink},
	{"RDMA_NLDEV_CMD_DELLINK", cmdDelLink},
	{"RDMA_NLDEV_CMD_PORT_GET", cmdPortGet},
	{"RDMA_NLDEV_CMD_SYS_GET", cmdSysGet},
	{"RDMA_NLDEV_CMD_SYS_SET", cmdSysSet},
	{"RDMA_NLDEV_CMD_RES_GET", cmdResGet},
	{"RDMA_NLDEV_CMD_RES_QP_GET", cmdResQPGet},
	{"RDMA_NLDEV_CMD_RES_CM_ID_GET", cmdResCMIDGet},
	{"RDMA_NLDEV_CMD_RES_CQ_GET", cmdResCQGet},
	{"RDMA_NLDEV_CMD_RES_MR_GET", cmdResMRGet},
	{"RDMA_NLDEV_CMD_RES_PD_GET", cmdResPDGet},
	{"RDMA_NLDEV_CMD_GET_CHARDEV", cmdGetChardev},
	{"RDMA_NLDEV_CMD_STAT_SET", cmdStatSet},
	{"RDMA_NLDEV_CMD_STAT_GET", cmdStatGet},
	{"RDMA_NLDEV_CMD_STAT_DEL", cmdStatDel},
	{"RDMA_NLDEV_CMD_RES_QP_GET_RAW", cmdResQPGetRaw},
	{"RDMA_NLDEV_CMD_RES_CQ_GET_RAW", cmdResCQGetRaw},
	{"RDMA_NLDEV_CMD_RES_MR_GET_RAW", cmdResMRGetRaw},
	{"RDMA_NLDEV_CMD_RES_CTX_GET", cmdResCtxGet},
	{"RDMA_NLDEV_CMD_RES_SRQ_GET", cmdResSRQGet},
	{"RDMA_NLDEV_CMD_STAT_GET_STATUS", cmdStatStatus},
	{"RDMA_NLDEV_CMD_RES_SRQ_GET_RAW", cmdResSRQGetRaw},
	{"RDMA_NLDEV_CMD_NEWDEV", cmdNewDev},
	{"RDMA_NLDEV_CMD_DELDEV", cmdDelDev},
	{"RDMA_NLDEV_CMD_MONITOR", cmdMonitor},
}

// attrNames maps the attributes to their names in the header.
var attrNames = []struct {
	name  string
	value int
}{
	{"RDMA_NLDEV_ATTR_UNSPEC", attrUnspec},
	{"RDMA_NLDEV_ATTR_DEV_INDEX", attrDevIndex},
	{"RDMA_NLDEV_ATTR_DEV_NAME", attrDevName},
	{"RDMA_NLDEV_ATTR_PORT_INDEX", attrPortIndex},
	{"RDMA_NLDEV_ATTR_CAP_FLAGS", attrCapFlags},
	{"RDMA_NLDEV_ATTR_FW_VERSION", attrFWVersion},
	{"RDMA_NLDEV_ATTR_NODE_GUID", attrNodeGUID},
	{"RDMA_NLDEV_ATTR_SYS_IMAGE_GUID", attrSysImageGUID},
	{"RDMA_NLDEV_ATTR_SUBNET_PREFIX", attrSubnetPrefix},
	{"RDMA_NLDEV_ATTR_LID", attrLID},
	{"RDMA_NLDEV_ATTR_SM_LID", attrSMLID},
	{"RDMA_NLDEV_ATTR_LMC", attrLMC},
	{"RDMA_NLDEV_ATTR_PORT_STATE", attrPortState},
	{"RDMA_NLDEV_ATTR_PORT_PHYS_STATE", attrPortPhysState},
	{"RDMA_NLDEV_ATTR_DEV_NODE_TYPE", attrDevNodeType},
	{"RDMA_NLDEV_ATTR_RES_SUMMARY", attrResSummary},
	{"RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY", attrResSummaryEntry},
	{"RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME", attrResSummaryEntryName},
	{"RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR", attrResSummaryEntryCurr},
	{"RDMA_NLDEV_ATTR_RES_QP", attrResQP},
	{"RDMA_NLDEV_ATTR_RES_QP_ENTRY", attrResQPEntry},
	{"RDMA_NLDEV_ATTR_RES_LQPN", attrResLQPN},
	{"RDMA_NLDEV_ATTR_RES_RQPN", attrResRQPN},
	{"RDMA_NLDEV_ATTR_RES_RQ_PSN", attrResRQPSN},
	{"RDMA_NLDEV_ATTR_RES_SQ_PSN", attrResSQPSN},
	{"RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE", attrResPathMigState},
	{"RDMA_NLDEV_ATTR_RES_TYPE", attrResType},
	{"RDMA_NLDEV_ATTR_RES_STATE", attrResState},
	{"RDMA_NLDEV_ATTR_RES_PID", attrResPID},
	{"RDMA_NLDEV_ATTR_RES_KERN_NAME", attrResKernName},
	{"RDMA_NLDEV_ATTR_RES_CM_ID", attrResCMID},
	{"RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY", attrResCMIDEntry},
	{"RDMA_NLDEV_ATTR_RES_PS", attrResPS},
	{"RDMA_NLDEV_ATTR_RES_SRC_ADDR", attrResSrcAddr},
	{"RDMA_NLDEV_ATTR_RES_DST_ADDR", attrResDstAddr},
	{"RDMA_NLDEV_ATTR_RES_CQ", attrResCQ},
	{"RDMA_NLDEV_ATTR_RES_CQ_ENTRY", attrResCQEntry},
	{"RDMA_NLDEV_ATTR_RES_CQE", attrResCQE},
	{"RDMA_NLDEV_ATTR_RES_USECNT", attrResUsecnt},
	{"RDMA_NLDEV_ATTR_RES_POLL_CTX", attrResPollCTX},
	{"RDMA_NLDEV_ATTR_RES_MR", attrResMR},
	{"RDMA_NLDEV_ATTR_RES_MR_ENTRY", attrResMREntry},
	{"RDMA_NLDEV_ATTR_RES_RKEY", attrResRKEY},
	{"RDMA_NLDEV_ATTR_RES_LKEY", attrResLKEY},
	{"RDMA_NLDEV_ATTR_RES_IOVA", attrResIOVA},
	{"RDMA_NLDEV_ATTR_RES_MRLEN", attrResMrlen},
	{"RDMA_NLDEV_ATTR_RES_PD", attrResPD},
	{"RDMA_NLDEV_ATTR_RES_PD_ENTRY", attrResPDEntry},
	{"RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY", attrResLocalDMALKEY},
	{"RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY", attrResUnsafeGlobalRKEY},
	{"RDMA_NLDEV_ATTR_NDEV_INDEX", attrNdevIndex},
	{"RDMA_NLDEV_ATTR_NDEV_NAME", attrNdevName},
	{"RDMA_NLDEV_ATTR_DRIVER", attrDriver},
	{"RDMA_NLDEV_ATTR_DRIVER_ENTRY", attrDriverEntry},
	{"RDMA_NLDEV_ATTR_DRIVER_STRING", attrDriverString},
	{"RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE", attrDriverPrintType},
	{"RDMA_NLDEV_ATTR_DRIVER_S32", attrDriverS32},
	{"RDMA_NLDEV_ATTR_DRIVER_U32", attrDriverU32},
	{"RDMA_NLDEV_ATTR_DRIVER_S64", attrDriverS64},
	{"RDMA_NLDEV_ATTR_DRIVER_U64", attrDriverU64},
	{"RDMA_NLDEV_ATTR_RES_PDN", attrResPDN},
	{"RDMA_NLDEV_ATTR_RES_CQN", attrResCQN},
	{"RDMA_NLDEV_ATTR_RES_MRN", attrResMRN},
	{"RDMA_NLDEV_ATTR_RES_CM_IDN", attrResCMIDN},
	{"RDMA_NLDEV_ATTR_RES_CTXN", attrResCTXN},
	{"RDMA_NLDEV_ATTR_LINK_TYPE", attrLinkType},
	{"RDMA_NLDEV_SYS_ATTR_NETNS_MODE", attrSysNetnsMode},
	{"RDMA_NLDEV_ATTR_DEV_PROTOCOL", attrDevProtocol},
	{"RDMA_NLDEV_NET_NS_FD", attrNetNSFD},
	{"RDMA_NLDEV_ATTR_CHARDEV_TYPE", attrChardevType},
	{"RDMA_NLDEV_ATTR_CHARDEV_NAME", attrChardevName},
	{"RDMA_NLDEV_ATTR_CHARDEV_ABI", attrChardevABI},
	{"RDMA_NLDEV_ATTR_CHARDEV", attrChardev},
	{"RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID", attrUverbsDriverID},
	{"RDMA_NLDEV_ATTR_STAT_MODE", attrStatMode},
	{"RDMA_NLDEV_ATTR_STAT_RES", attrStatRes},
	{"RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK", attrStatAutoModeMask},
	{"RDMA_NLDEV_ATTR_STAT_COUNTER", attrStatCounter},
	{"RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY", attrStatCounterEntry},
	{"RDMA_NLDEV_ATTR_STAT_COUNTER_ID", attrStatCounterID},
	{"RDMA_NLDEV_ATTR_STAT_HWCOUNTERS", attrStatHwcounters},
	{"RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY", attrStatHwcounterEntry},
	{"RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME", attrStatHwcounterEntryName},
	{"RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE", attrStatHwcounterEntryValue},
	{"RDMA_NLDEV_ATTR_DEV_DIM", attrDevDIM},
	{"RDMA_NLDEV_ATTR_RES_RAW", attrResRaw},
	{"RDMA_NLDEV_ATTR_RES_CTX", attrResCTX},
	{"RDMA_NLDEV_ATTR_RES_CTX_ENTRY", attrResCTXEntry},
	{"RDMA_NLDEV_ATTR_RES_SRQ", attrResSRQ},
	{"RDMA_NLDEV_ATTR_RES_SRQ_ENTRY", attrResSRQEntry},
	{"RDMA_NLDEV_ATTR_RES_SRQN", attrResSRQN},
	{"RDMA_NLDEV_ATTR_MIN_RANGE", attrMinRange},
	{"RDMA_NLDEV_ATTR_MAX_RANGE", attrMaxRange},
	{"RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK", attrSysCopyOnFork},
	{"RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX", attrStatHwcounterIndex},
	{"RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC", attrStatHwcounterDynamic},
	{"RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE", attrSysPrivilegedQkeyMode},
	{"RDMA_NLDEV_ATTR_DRIVER_DETAILS", attrDriverDetails},
	{"RDMA_NLDEV_ATTR_RES_SUBTYPE", attrResSubtype},
	{"RDMA_NLDEV_ATTR_DEV_TYPE", attrDevType},
	{"RDMA_NLDEV_ATTR_PARENT_NAME", attrParentName},
	{"RDMA_NLDEV_ATTR_NAME_ASSIGN_TYPE", attrNameAssignType},
	{"RDMA_NLDEV_ATTR_EVENT_TYPE", attrEventType},
	{"RDMA_NLDEV_SYS_ATTR_MONITOR_MODE", attrSysMonitorMode},
	{"RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED", attrStatOpcounterEnabled},
}

// otherConstantNames maps further numbers to their names in the header.
var otherConstantNames = []struct {
	name  string
	value int
}{
	{"RDMA_NL_NLDEV", clientNldev},
	{"RDMA_COUNTER_MODE_NONE", counterModeNone},
	{"RDMA_COUNTER_MODE_AUTO", counterModeAuto},
	{"RDMA_NODE_IB_CA", 1},
}

// The following constants are the first attribute and the first command that Debian 12's header (Linux 6.1) lacks.
const (
	newerAttr    = attrSysPrivilegedQkeyMode
	newerCommand = cmdResSRQGetRaw
)

// readHeader returns the enumerators of the header. No enumerator that the tests use depends on an expression.
func readHeader(t *testing.T) map[string]int {
	t.Helper()
	b, err := os.ReadFile(headerPath)
	if err != nil {
		t.Skipf("%v (Debian package linux-libc-dev)", err)
	}
	text := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(b), "")
	values := map[string]int{}
	for _, enum := range regexp.MustCompile(`(?s)\benum\b[^{};]*\{(.*?)\}`).FindAllStringSubmatch(text, -1) {
		next := 0
		for e := range strings.SplitSeq(enum[1], ",") {
			name, value, explicit := strings.Cut(e, "=")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			if name == "" {
				continue
			}
			if explicit {
				if n, err := strconv.ParseInt(value, 0, 32); err == nil {
					next = int(n)
				} else if n, ok := values[value]; ok {
					next = n
				}
			}
			values[name] = next
			next++
		}
	}
	return values
}

// TestNumbersMatchHeader compares the numbers of this package with those in the system's header.
func TestNumbersMatchHeader(t *testing.T) {
	header := readHeader(t)
	check := func(name string, value int, mayLack bool) {
		t.Helper()
		switch want, ok := header[name]; {
		case !ok && !mayLack:
			t.Errorf("%s: got no definition in %s, want one", name, headerPath)
		case ok && value != want:
			t.Errorf("%s: got %d, want %d", name, value, want)
		}
	}
	for _, c := range commandNames {
		check(c.name, c.value, c.value >= newerCommand)
	}
	for _, a := range attrNames {
		check(a.name, a.value, a.value >= newerAttr)
	}
	for _, o := range otherConstantNames {
		check(o.name, o.value, false)
	}
	if got, least := header["RDMA_NLDEV_ATTR_MAX"], newerAttr; got < least {
		t.Errorf("RDMA_NLDEV_ATTR_MAX: got %d in the header, want at least %d", got, least)
	}
	if len(attrNames) != attrCount {
		t.Errorf("names in attrNames: got %d, want %d", len(attrNames), attrCount)
	}
	for i, a := range attrNames {
		if a.value != i {
			t.Errorf("attrNames[%d]: got %s with value %d, want value %d", i, a.name, a.value, i)
		}
	}
}
