SET millstream.exchang = 'merge';
