package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"path"
)

// writeArchive writes a tar.gz file that contains all files below one directory.
func (r *releaseBuilder) writeArchive(name string, files []archiveFile) error {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	below := make([]archiveFile, len(files))
	for i, f := range files {
		f.name = path.Join("verbena-"+r.version, f.name)
		below[i] = f
	}
	if err := r.writeTar(z, below); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return r.writeArtefact(name, b.Bytes())
}

// writeTar writes the files and their directories. Root owns them, and their time is that of the release.
func (r *releaseBuilder) writeTar(w io.Writer, files []archiveFile) error {
	t := tar.NewWriter(w)
	made := map[string]bool{".": true, "/": true}
	var dir func(name string) error
	dir = func(name string) error {
		if made[name] {
			return nil
		}
		if err := dir(path.Dir(name)); err != nil {
			return err
		}
		made[name] = true
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: r.time})
	}
	for _, f := range files {
		if err := dir(path.Dir(f.name)); err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Size: int64(len(f.content)),
			ModTime: r.time}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if _, err := t.Write(f.content); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return t.Close()
}

// gzipContent returns the content in the format of `gzip -n`.
func gzipContent(content []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(content); err != nil {
		return nil, err
	}
	err = z.Close()
	return b.Bytes(), err
}
