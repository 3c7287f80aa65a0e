DROP TABLE holdfast.bare_queue
