package release

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// TestPlaces tests that the recipes contain the addresses of packaging/project.env, and a single version.
func TestPlaces(t *testing.T) {
	project := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^([A-Z_]+)="?(.*?)"?$`).FindAllStringSubmatch(
		readFile(t, "packaging/project.env"), -1) {
		project[m[1]] = m[2]
	}
	url := regexp.MustCompile(`https://[^\s"]*/verbena\b`)
	image := regexp.MustCompile(`\b[a-z.]+/[\w-]+/verbena:([0-9.]+\w)`)
	uses := regexp.MustCompile(`uses: ([\w-]+/[\w-]+)/recipes/[a-z-]+@v(\S+)`)
	versions := regexp.MustCompile(`(?m)(?:VERSION[=:] ?|default: )([0-9]+\.[0-9]+\.[0-9]+)`)
	files, err := filepath.Glob(filepath.Join(repoRoot, "recipes/*"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(repoRoot, "recipes/*/*"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(append(files, more...), filepath.Join(repoRoot, "docs/install.md"))
	seen := 0
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			continue
		}
		name, _ := filepath.Rel(repoRoot, file)
		text := readFile(t, name)
		for _, u := range url.FindAllString(text, -1) {
			if seen++; u != project["REPOSITORY"] {
				t.Errorf("%s: address: got %s, want that of REPOSITORY, %s", name, u, project["REPOSITORY"])
			}
		}
		for _, m := range image.FindAllStringSubmatch(text, -1) {
			if seen++; m[0] != project["IMAGE"]+":"+releaseVersion {
				t.Errorf("%s: image: got %s, want %s:%s", name, m[0], project["IMAGE"], releaseVersion)
			}
		}
		for _, m := range uses.FindAllStringSubmatch(text, -1) {
			if seen++; "https://github.com/"+m[1] != project["REPOSITORY"] || m[2] != releaseVersion {
				t.Errorf("%s: got %s, want the repository and version of the project", name, m[0])
			}
		}
		for _, m := range versions.FindAllStringSubmatch(text, -1) {
			if seen++; m[1] != releaseVersion {
				t.Errorf("%s: version: got %s, want %s", name, m[1], releaseVersion)
			}
		}
	}
	if seen < 15 {
		t.Errorf("addresses: got %d, want at least 15", seen)
	}
}

// compositeAction is a composite action of GitHub. The files contain no other fields.
type compositeAction struct {
	Name, Description string
	Inputs            map[string]struct{ Description, Default string }
	Runs              struct {
		Using string
		Steps []struct {
			Name, Shell, Run, Uses string
			Env, With              map[string]string
		}
	}
}

func readAction(t *testing.T, name string) (a compositeAction) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(readFile(t, "recipes/"+name+"/action.yml")), &a); err != nil {
		t.Fatalf("parse %s: got %v, want success", name, err)
	}
	if a.Name == "" || a.Description == "" || a.Runs.Using != "composite" {
		t.Errorf("%s: got %+v, want a composite action with a description", name, a)
	}
	for _, s := range a.Runs.Steps {
		if s.Run != "" && (s.Shell != "bash" || strings.Contains(s.Run, "${{")) {
			t.Errorf("%s: step %s: got shell %q or a value in the script, want bash, and values passed by env", name, s.Name,
				s.Shell)
		}
		if s.Run == "" && s.Uses == "" {
			t.Errorf("%s: step %s: got no action, want one", name, s.Name)
		}
	}
	return a
}

var expressionPattern = regexp.MustCompile(`\$\{\{ *([a-z_.]+) *\}\}`)

// script returns the commands that a GitHub runner executes for the action. Each step runs in a new shell, with the
// inputs, and with earlier steps' additions to the environment and the path.
func (a *compositeAction) script(t *testing.T, inputs map[string]string) string {
	t.Helper()
	value := func(text string) string {
		return expressionPattern.ReplaceAllStringFunc(text, func(e string) string {
			name := expressionPattern.FindStringSubmatch(e)[1]
			switch name {
			case "runner.temp":
				return "/tmp/runner"
			case "github.action_path":
				return "/action"
			}
			input, ok := a.Inputs[strings.TrimPrefix(name, "inputs.")]
			if !ok {
				t.Errorf("%s: got the unknown input %s, want a declared one", a.Name, name)
			}
			if v, ok := inputs[strings.TrimPrefix(name, "inputs.")]; ok {
				return v
			}
			return input.Default
		})
	}
	var b strings.Builder
	b.WriteString(
		"export RUNNER_TEMP=/tmp/runner GITHUB_ENV=/tmp/env GITHUB_PATH=/tmp/path\nmkdir -p $RUNNER_TEMP; touch $GITHUB_ENV $GITHUB_PATH\n")
	for i, s := range a.Runs.Steps {
		if s.Run == "" {
			continue
		}
		fmt.Fprintf(&b, "cat >/tmp/step%d <<'END-OF-STEP'\n%s\nEND-OF-STEP\n(", i, s.Run)
		b.WriteString("set -a; . /tmp/env; set +a; while read -r p; do PATH=$p:$PATH; done </tmp/path\n")
		for name, v := range s.Env {
			fmt.Fprintf(&b, "export %s='%s'\n", name, value(v))
		}
		fmt.Fprintf(&b, "bash --noprofile --norc -e -o pipefail /tmp/step%d) || exit 1\n", i)
	}
	return b.String()
}

func TestActionsAreWellFormed(t *testing.T) {
	setup, report := readAction(t, "setup-verbena"), readAction(t, "report-verbena")
	setup.script(t, nil)
	pinned := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
	for _, s := range append(setup.Runs.Steps, report.Runs.Steps...) {
		if s.Uses != "" && !pinned.MatchString(s.Uses) {
			t.Errorf("step %s: version: got %s, want the digest of a commit", s.Name, s.Uses)
		}
	}
	for _, name := range []string{"setup-verbena", "report-verbena"} {
		for line := range strings.Lines(readFile(t, "recipes/"+name+"/action.yml")) {
			if text := strings.TrimSpace(line); strings.HasPrefix(text, "uses:") &&
				!regexp.MustCompile(` # v\d+\.\d+\.\d+$`).MatchString(text) {
				t.Errorf("%s: %s: got no version as a comment, want one", name, text)
			}
		}
	}
	last := report.Runs.Steps[len(report.Runs.Steps)-1]
	if !strings.HasPrefix(last.Uses, "actions/upload-artifact@") ||
		last.With["path"] != "${{ runner.temp }}/verbena/report" {
		t.Errorf("last step of the report: got %+v, want the upload of an artefact", last)
	}
}

// digestOf returns the SHA-256 of an artefact.
func digestOf(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(releaseDir(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// archiveDigests returns the file of digests for an action that uses the release of the tests.
func archiveDigests(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("verbena-%s-linux-%s.tar.gz", releaseVersion, goArch())
	return digestOf(t, name) + "  " + name + "\n"
}

// TestActionVerifiesDigest tests that the action verifies an archive of a release with a digest from another source.
func TestActionVerifiesDigest(t *testing.T) {
	for _, name := range []string{"bash", "curl", "tar", "sha256sum"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	setup := readAction(t, "setup-verbena")
	install := setup.Runs.Steps[0]
	place, action := t.TempDir(), t.TempDir()
	arch := map[string]string{"amd64": "amd64", "arm64": "arm64"}[goArch()]
	name := "verbena-7.8.9-linux-" + arch + ".tar.gz"
	inside := filepath.Join(t.TempDir(), "verbena-7.8.9")
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(inside, "verbena"), []byte("#!/bin/sh\necho this is verbena\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "-czf", filepath.Join(place, name), "-C", filepath.Dir(inside),
		"verbena-7.8.9").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(place, name))
	if err != nil {
		t.Fatal(err)
	}
	right, wrong := fmt.Sprintf("%x", sha256.Sum256(b)), strings.Repeat("0", 64)
	// The server of the archive can publish any digest.
	if err := os.WriteFile(filepath.Join(place, "SHA256SUMS"), []byte(right+"  "+name+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		digests, input string
		ok             bool
		says           string
	}{
		"listed": {"# words\n" + wrong + "  verbena-7.8.8-linux-" + arch + ".tar.gz\n" + right + "  " + name +
			"\n", "", true, "this is verbena"},
		"given":                {"", right, true, "this is verbena"},
		"given before listed":  {wrong + "  " + name + "\n", right, true, "this is verbena"},
		"not listed":           {"# nothing\n", "", false, "::error::no SHA-256 of " + name},
		"no digest":            {name + "\n", "", false, "::error::no SHA-256"},
		"listed, another":      {wrong + "  " + name + "\n", "", false, "::error::" + name + " is not the file"},
		"given, another":       {right + "  " + name + "\n", wrong, false, "::error::" + name + " is not the file"},
		"given, no digest":     {"", "yes", false, "::error::no SHA-256"},
		"given, two digests":   {"", right + "\n" + wrong, false, "::error::no SHA-256"},
		"listed, another name": {right + "  x" + name + "\n", "", false, "::error::no SHA-256"},
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(action, "digests"), []byte(c.digests), 0o644); err != nil {
				t.Fatal(err)
			}
			temp := t.TempDir()
			run := exec.Command("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", install.Run)
			run.Env = append(os.Environ(), "VERSION=7.8.9", "URL=file://"+place, "SHA256="+c.input, "ACTION="+action,
				"PACKAGES=", "RUNNER_TEMP="+temp,
				"GITHUB_PATH="+filepath.Join(temp, "path"))
			out, err := run.CombinedOutput()
			if (err == nil) != c.ok || !strings.Contains(string(out), c.says) {
				t.Errorf("action: got %v, want success: %v, with %q in the output\n%s", err, c.ok, c.says, out)
			}
			if _, err := os.Stat(filepath.Join(temp, "verbena", "verbena")); (err == nil) != c.ok {
				t.Errorf("unpacked archive: got %v, want %v", err == nil, c.ok)
			}
		})
	}
}

// TestVulnReportsMissingAnswer tests that scripts/vuln distinguishes known vulnerabilities from a missing answer, and
// names the requirement for an answer.
func TestVulnReportsMissingAnswer(t *testing.T) {
	for _, c := range []struct {
		install, check, want int
		says                 string
	}{{0, 0, 0, "checked"}, {0, 3, 3, "checked"}, {0, 1, 2, "GOVULNDB"}, {1, 0, 2, "GOPROXY"}} {
		fake := filepath.Join(t.TempDir(), "go")
		script := fmt.Sprintf(
			"#!/bin/sh\n[ %d = 0 ] || exit 1\nprintf '#!/bin/sh\\necho checked\\nexit %d\\n' >\"$GOBIN/govulncheck\"; chmod +x \"$GOBIN/govulncheck\"\n",
			c.install, c.check)
		if err := os.WriteFile(fake, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		run := exec.Command(filepath.Join(repoRoot, "scripts/vuln"))
		run.Env = append(os.Environ(), "GO="+fake)
		out, _ := run.CombinedOutput()
		if got := run.ProcessState.ExitCode(); got != c.want || !strings.Contains(string(out), c.says) {
			t.Errorf("install %d, govulncheck %d: got status %d, want %d, and %q\n%s", c.install, c.check, got, c.want, c.says,
				out)
		}
	}
}

// TestActionsRunOnDebian runs the published steps of both actions on a Debian without Go, and then the failing steps of
// a job.
func TestActionsRunOnDebian(t *testing.T) {
	skipIfUnable(t)
	setup, report := readAction(t, "setup-verbena"), readAction(t, "report-verbena")
	action := t.TempDir()
	if err := os.WriteFile(filepath.Join(action, "digests"), []byte(archiveDigests(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	b := newBareSandbox(t, "bookworm").withFlags("-bind", action+":/action")
	b.mustRun(t, "apt-get", "install", "-y", "-q", "--no-install-recommends", "curl") // preinstalled on GitHub's runners
	url := map[string]string{"url": "file:///release", "serve": "--link rxe0=127.0.0.1 --wire"}
	job := "\nset -a; . /tmp/env; set +a; PATH=$(cat /tmp/path):$PATH\n"
	script := setup.script(t, url) + job + firstMinuteRecipe(t) + "\nwait $!\n" + report.script(t, nil) + `
cat /tmp/runner/verbena/report/stat.txt
head -c 4 /tmp/runner/verbena/report/packets.pcapng | od -An -tx1
/tmp/runner/verbena/verbena capture verify /tmp/runner/verbena/report/packets.pcapng
grep -c serving /tmp/runner/verbena/report/sock.log
`
	out := b.mustRun(t, "bash", "-e", "-c", script)
	expectMatches(t, out, "verbena-.*: OK", "^verbena v"+releaseVersion, "8192000 bytes in", `rxe0 +sent_pkts +[1-9]`,
		"^ 0a 0d 0d 0a",
		"icrc good [1-9][0-9]* bad 0")
	// The next runs use a wrong checksum, and a version that does not exist.
	damaged := strings.Replace(setup.script(t, url), "if ! sha256sum", "echo x >>$file; if ! sha256sum", 1)
	out = b.mustFail(t, "bash", "-c", damaged)
	expectMatches(t, out, "FAILED", "::error::verbena-.* is not the file")
	out = b.mustFail(t, "bash", "-c", setup.script(t, map[string]string{"url": "file:///release", "version": "9.9.9"}))
	expectMatches(t, out, "::error::no SHA-256 of verbena-9.9.9-linux")
	out = b.mustFail(t, "bash", "-c", setup.script(t, map[string]string{"url": "file:///release", "version": "9.9.9",
		"sha256": strings.Repeat("0", 64)}))
	expectMatches(t, out, "::error::file:///release/verbena-9.9.9-linux-.*: is 9.9.9 a version of Verbena\\?")
}

// mustFail runs a program that must fail, and returns its output.
func (b *sandbox) mustFail(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := b.command(t, argv...).CombinedOutput()
	if err == nil {
		t.Fatalf("%q: got success, want an error:\n%s", argv, out)
	}
	return string(out)
}

// TestGitLabRecipeRuns runs the job of GitLab's recipe line by line, like GitLab's runner.
func TestGitLabRecipeRuns(t *testing.T) {
	type job struct {
		Variables    map[string]string
		BeforeScript []string `json:"before_script"`
		AfterScript  []string `json:"after_script"`
		Artifacts    struct {
			When  string
			Paths []string
		}
	}
	var file map[string]job
	if err := yaml.UnmarshalStrict([]byte(readFile(t, "recipes/gitlab-ci.yml")), &file); err != nil {
		t.Fatal(err)
	}
	j, ok := file[".verbena"]
	if !ok || len(file) != 1 || len(j.BeforeScript) == 0 || len(j.AfterScript) == 0 ||
		!slices.Equal(j.Artifacts.Paths, []string{"verbena/"}) {
		t.Fatalf("recipe: got %+v, want one job with all scripts", file)
	}
	skipIfUnable(t)
	if j.Variables["VERBENA_SHA256"] != "" {
		t.Error("VERBENA_SHA256 in the recipe: got a digest, want an empty value")
	}
	j.Variables["VERBENA_URL"] = "file:///release"
	j.Variables["VERBENA_SHA256"] = digestOf(t, fmt.Sprintf("verbena_%s_%s.deb", releaseVersion, goArch()))
	var head strings.Builder
	for name, value := range j.Variables {
		fmt.Fprintf(&head, "export %s='%s'\n", name, value)
	}
	lines := func(all []string) string { return head.String() + strings.Join(all, "\n") + "\n" }
	b := newBareSandbox(t, "trixie").withFlags("-dir", "/tmp")
	script := "(\n" + lines(j.BeforeScript) + firstMinuteRecipe(t) + "\nwait $!\n) || exit 1\n(\n" + lines(j.AfterScript) +
		")\nls verbena; cat verbena/stat.txt\n"
	expectMatches(t, b.mustRun(t, "bash", "-e", "-o", "pipefail", "-c", script), ": OK", "8192000 bytes in",
		"^packets.pcapng",
		"^sock.log", `rxe0 +`)
}

// dockerInstructions returns the instructions of a Dockerfile, each as one line.
func dockerInstructions(t *testing.T, text string) (all [][2]string) {
	t.Helper()
	text = regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(text, "")
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		switch name {
		case "FROM", "ARG", "RUN", "CMD", "ENTRYPOINT":
		default:
			t.Errorf("instruction: got %s, want one that this test supports", name)
		}
		all = append(all, [2]string{name, rest})
	}
	return all
}

// TestDockerfileCommandsRun runs the commands of the Dockerfile, and then its program, in the same way as Docker.
func TestDockerfileCommandsRun(t *testing.T) {
	var run, arguments string
	var entry, cmd []string
	for _, i := range dockerInstructions(t, readFile(t, "recipes/Dockerfile")) {
		var err error
		switch i[0] {
		case "FROM":
			if i[1] != "debian:trixie-slim" {
				t.Errorf("FROM: got %s, want Debian trixie, the base of the test", i[1])
			}
		case "ARG":
			arguments += i[1] + "\n"
		case "RUN":
			run += i[1] + "\n"
		case "CMD":
			err = json.Unmarshal([]byte(i[1]), &cmd)
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(i[1]), &entry)
		}
		if err != nil {
			t.Errorf("instruction %v: got %v, want success", i, err)
		}
	}
	if run == "" || len(entry) == 0 || len(cmd) == 0 {
		t.Fatalf("Dockerfile: got RUN %q, ENTRYPOINT %q and CMD %q, want all three", run, entry, cmd)
	}
	skipIfUnable(t)
	b := newBareSandbox(t, "trixie")
	b.mustRun(t, "sh", "-e", "-c", "set -a\n"+arguments+"URL=file:///release\nSHA256="+digestOf(t,
		fmt.Sprintf("verbena_%s_%s.deb", releaseVersion, goArch()))+"\n"+run)
	for _, flags := range [][]string{nil, {"-user", nobodyUID}} {
		expectMatches(t, b.withFlags("-docker").withFlags(flags...).mustRun(t, append(entry, cmd...)...), `hca_id:\s+rxe0`,
			`state:\s+PORT_ACTIVE`)
	}
}

// TestComposeContainersRun runs the two containers of the compose file on the image, in two network namespaces joined
// by a bridge.
func TestComposeContainersRun(t *testing.T) {
	p, err := loader.LoadWithContext(t.Context(),
		types.ConfigDetails{WorkingDir: t.TempDir(), Environment: types.Mapping{},
			ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: []byte(readFile(t, "recipes/compose.yaml"))}}},
		func(o *loader.Options) { o.SetProjectName("verbena", true) })
	if err != nil {
		t.Fatal(err)
	}
	server, client := p.Services["server"], p.Services["client"]
	if len(p.Services) != 2 || client.DependsOn["server"].Condition != types.ServiceConditionHealthy ||
		server.HealthCheck == nil {
		t.Fatalf("services: got %v, want a server and a client that waits for it", p.ServiceNames())
	}
	skipIfUnable(t)
	dir, config := unpackImage(t)
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("10.50.0.1 server\n10.50.0.2 client\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	names := [2]string{"verbena-rel-server", "verbena-rel-client"}
	linkNetworks(t, names)
	container := func(n string) *sandbox {
		return newSandbox(t, dir).withFlags("-docker", "-net", n, "-bind", hosts+":/etc/hosts")
	}
	s := container(names[0])
	c := s.command(t, append(slices.Clone(config.Config.Entrypoint), server.Command...)...)
	var out lockedBuffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	check := server.HealthCheck
	if len(check.Test) < 2 || check.Test[0] != "CMD" {
		t.Fatalf("health check: got %q, want a CMD", check.Test)
	}
	healthy := false
	for range int(*check.Retries) {
		// The check runs in the network of the server, as with docker exec.
		if healthy = s.command(t, check.Test[1:]...).Run() == nil; healthy {
			break
		}
		time.Sleep(time.Duration(*check.Interval))
	}
	if !healthy {
		t.Fatalf("wait for the server to listen: got a timeout, want a listener:\n%s", out.String())
	}
	expectMatches(t, container(names[1]).mustRun(t, append(slices.Clone(config.Config.Entrypoint), client.Command...)...),
		"8192000 bytes in", `GID ::ffff:10\.50\.0\.1`)
	if err := c.Wait(); err != nil {
		t.Errorf("server: got %v, want success:\n%s", err, out.String())
	}
}

// readManifests returns the objects of a file by kind. It decodes each object strictly, like the object's API.
func readManifests(t *testing.T, file string) (daemon appsv1.DaemonSet, job batchv1.Job) {
	t.Helper()
	for _, text := range strings.Split(readFile(t, file), "\n---\n") {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatal(err)
		}
		var err error
		switch kind.Kind {
		case "DaemonSet":
			err = decodeStrict(text, &daemon)
		case "Job":
			err = decodeStrict(text, &job)
		default:
			t.Errorf("%s: got kind %q, want one that this test supports", file, kind.Kind)
		}
		if err != nil {
			t.Errorf("%s: decode %s: got %v, want success", file, kind.Kind, err)
		}
	}
	return daemon, job
}

// decodeStrict decodes an object in the same way as the API server with strict field validation. The case of field
// names matters.
func decodeStrict(text string, v any) error {
	b, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return err
	}
	unknown, err := kjson.UnmarshalStrict(b, v)
	return errors.Join(append(unknown, err)...)
}

func TestKubernetesManifests(t *testing.T) {
	daemon, job := readManifests(t, "recipes/kubernetes.yaml")
	if daemon.APIVersion != "apps/v1" || job.APIVersion != "batch/v1" {
		t.Errorf("API versions: got %s and %s, want apps/v1 and batch/v1", daemon.APIVersion, job.APIVersion)
	}
	for _, spec := range []corev1.PodSpec{daemon.Spec.Template.Spec, job.Spec.Template.Spec} {
		volumes := map[string]bool{}
		for _, v := range spec.Volumes {
			volumes[v.Name] = true
		}
		for _, c := range append(spec.InitContainers, spec.Containers...) {
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("mount of container %s: got %s, want a volume of its pod", c.Name, m.Name)
				}
			}
		}
	}
	labels := daemon.Spec.Template.Labels
	for k, v := range daemon.Spec.Selector.MatchLabels {
		if labels[k] != v {
			t.Errorf("label %s=%s of the selector: got none in the pods, want one", k, v)
		}
	}
}

// TestPodsMountSocketReadOnly tests that pods get the directory of the socket read-only, and no privileges. Only the
// service may write to that directory.
func TestPodsMountSocketReadOnly(t *testing.T) {
	daemon, job := readManifests(t, "recipes/kubernetes.yaml")
	pod := job.Spec.Template.Spec
	shared := map[string]bool{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			shared[v.Name] = true
		}
	}
	if len(shared) == 0 {
		t.Fatal("mounts of the pod: got no directory of the node, want one")
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		for _, m := range c.VolumeMounts {
			if shared[m.Name] && !m.ReadOnly {
				t.Errorf("container %s: mount %s of the node: got a writable one, want a read-only one, because the container could replace the socket", c.Name, m.MountPath)
			}
		}
	}
	s := pod.Containers[0].SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.AllowPrivilegeEscalation == nil ||
		*s.AllowPrivilegeEscalation ||
		s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("security context of the pod's program: got %+v, want no unneeded rights", s)
	}
	service := daemon.Spec.Template.Spec
	if service.Containers[0].Resources.Limits.Memory().IsZero() || service.PriorityClassName != "system-node-critical" {
		t.Error("service: got no memory limit or no node-critical priority, want both against the OOM killer")
	}
	for _, need := range []string{"hostPath", "privileged", "read-only", "runAsUser"} {
		head, _, _ := strings.Cut(readFile(t, "recipes/kubernetes.yaml"), "\napiVersion")
		if !strings.Contains(head, need) {
			t.Errorf("comment in recipes/kubernetes.yaml: got no requirement %s, want it", need)
		}
	}
}

// TestUnitBoundsResources tests that the unit limits the resources of users, and is not the first process that the
// kernel kills when memory is short. The recipe for Compose must need no privileges and no mounts.
func TestUnitBoundsResources(t *testing.T) {
	unit := readFile(t, "packaging/verbena.service")
	for _, want := range []string{"MemoryMax", "TasksMax", "OOMScoreAdjust"} {
		if !regexp.MustCompile(`(?m)^` + want + `=`).MatchString(unit) {
			t.Errorf("packaging/verbena.service: got no %s=, want one", want)
		}
	}
	if regexp.MustCompile(`(?m)^(privileged|volumes|cap_add|security_opt|pid|ipc|network_mode):`).MatchString(
		regexp.MustCompile(`(?m)^ +`).ReplaceAllString(readFile(t, "recipes/compose.yaml"), "")) {
		t.Error("recipes/compose.yaml: got rights of the host, want none")
	}
}

// TestDaemonSetServesPod runs the service of the DaemonSet, and a pod with its own processes and files that uses the
// service. TestDaemonSetServesPod takes commands, capabilities and mounts from the manifests.
func TestDaemonSetServesPod(t *testing.T) {
	skipIfUnable(t)
	daemon, job := readManifests(t, "recipes/kubernetes.yaml")
	dir, config := unpackImage(t)
	host := map[string]string{} // volumes by name
	node := t.TempDir()
	volume := func(v corev1.Volume) string {
		if v.HostPath != nil {
			return filepath.Join(node, v.HostPath.Path)
		}
		return filepath.Join(node, "pods", v.Name)
	}
	os.Chmod(filepath.Dir(node), 0o755)
	os.Chmod(node, 0o755)
	// This network namespace represents the network of a kubelet, which runs all containers.
	const network = "verbena-rel-node"
	linkNetworks(t, [2]string{network, network + "2"})
	container := func(spec corev1.PodSpec, c corev1.Container) (*sandbox, []string) {
		b := newSandbox(t, dir).withFlags("-docker", "-net", network)
		for _, v := range spec.Volumes {
			if host[v.Name] = volume(v); os.MkdirAll(host[v.Name], 0o755) != nil {
				t.Fatal(host[v.Name])
			}
		}
		for _, m := range c.VolumeMounts {
			if m.MountPath != "/dev/shm" {
				how := ""
				if m.ReadOnly {
					how = ":ro"
				}
				b = b.withFlags("-bind", host[m.Name]+":"+m.MountPath+how)
			}
		}
		if spec.HostPID {
			b = b.withFlags("-pid", "host")
		}
		if s := c.SecurityContext; s != nil && s.RunAsUser != nil && *s.RunAsUser != 0 {
			b = b.withFlags("-user", fmt.Sprint(*s.RunAsUser))
		}
		if s := c.SecurityContext; s != nil && s.Capabilities != nil {
			for _, d := range s.Capabilities.Drop {
				b = b.withFlags("-drop", string(d))
			}
			for _, a := range s.Capabilities.Add {
				b = b.withFlags("-cap", string(a))
			}
		}
		for _, e := range c.Env {
			b = b.withFlags("-env", e.Name+"="+e.Value)
		}
		argv := c.Command
		if len(argv) == 0 {
			argv = slices.Clone(config.Config.Entrypoint)
		}
		return b, append(argv, c.Args...)
	}
	spec := daemon.Spec.Template.Spec
	b, argv := container(spec, spec.Containers[0])
	service := b.command(t, argv...)
	var log lockedBuffer
	service.Stdout, service.Stderr = &log, &log
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { service.Process.Signal(os.Interrupt); service.Wait() })
	probe := spec.Containers[0].ReadinessProbe.Exec.Command
	awaitCondition(t, func() bool { return b.command(t, probe...).Run() == nil || service.ProcessState != nil }, &log)
	pod := job.Spec.Template.Spec
	for _, flags := range [][]string{nil, {"-user", nobodyUID}} {
		if flags == nil {
			b, argv := container(pod, pod.InitContainers[0])
			b.mustRun(t, argv...)
		}
		b, argv := container(pod, pod.Containers[0])
		out, err := b.withFlags(flags...).command(t, argv...).CombinedOutput()
		if err != nil || !regexp.MustCompile(`hca_id:\s+rxe0`).Match(out) {
			t.Errorf("%v: got error %v or no device, want rxe0:\n%s\nthe service:\n%s", flags, err, out, log.String())
			continue
		}
		minute := append(argv[:len(argv)-1:len(argv)-1], "bash", "-e", "-c",
			strings.NewReplacer("verbena run -- ", "", "verbena wait",
				"/opt/verbena/verbena wait").Replace(firstMinuteRecipe(t))+"\nwait\n")
		expectMatches(t, b.withFlags(flags...).mustRun(t, minute...), "8192000 bytes in")
	}
	if out, err := exec.Command("ip", "netns", "list").Output(); err == nil && !strings.Contains(string(out), network) {
		t.Errorf("network namespace: got none, want it:\n%s", out)
	}
}
