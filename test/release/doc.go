// Package release tests the artefacts and recipes of a release. Two builds must be identical. The artefacts must
// work in bare Debian 12 and 13 without changes, including under Docker's default seccomp profile. The published
// recipes must have the described results. The package is a separate module, because it has dependencies that
// Verbena itself does not have.
//
//	make release-test
//
// With -short the tests only read the recipes. The other tests need root, mmdebstrap and a mirror of Debian.
// Debian's packages are cached below RELEASE_CACHE (default: ~/.cache/verbena/release). RELEASE_DIST is a directory
// of existing artefacts to test.
package release
